"""Mutants made by someone who knows what the fields of a checkpoint mean."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from checkpoint_source import Dice, Source
from json_trees import Raw, shown
from mutant_files import ARRAYS, DTYPES, Mutant, as_bytes
from mutate_files import tensor_values
from mutate_state import state_leaf
from tensor_files import extremes, tensors_of, to_safetensors


def torch_generator(source: Source, dice: Dice) -> Mutant:
    """PyTorch's generator, whose indices PyTorch itself does not check against each other."""
    dtype, shape, data = tensors_of(as_bytes(source.files[ARRAYS]))["/random/torch"]
    raw = bytearray(data)
    at_byte, form, numbers = dice.one_of(
        [(8, "<i", [0, -1, 1, 623, 624, 625, 2**31 - 1]), (12, "<i", [0, 1, 2, -1]),
         (16, "<Q", [0, 1, 623, 624, 625, 2**31, 2**63, 2**64 - 1]), (5016, "<d", [np.nan, np.inf, -1e308]),
         (5024, "<d", [np.nan, 1e308]), (5032, "<d", [np.nan]), (5040, "<i", [1, 2, -1]), (5048, "<f", [np.nan]),
         (5052, "<B", [1, 2, 255])]
    )  # fmt: skip
    number = dice.one_of(numbers)
    struct.pack_into(form, raw, at_byte, number)
    if dice.number(2):  # PyTorch accepts it if both are within 624
        struct.pack_into("<i", raw, 8, dice.one_of([1, 624]))
        struct.pack_into("<Q", raw, 16, dice.one_of([0, 300, 624]))
    tensor = (dtype, shape, bytes(raw))
    return Mutant("torch generator", f"{number} at byte {at_byte}", source.with_tensor(ARRAYS, "/random/torch", tensor))


def optimizer(source: Source, dice: Dice) -> Mutant:
    """Settings and moments that PyTorch does not look at when they are loaded."""
    state = source.state
    policy_id = dice.one_of(sorted(state["policies"]))
    groups = state["policies"][policy_id]["optimizers"]["policy.optimizer"]
    name = dice.one_of(sorted(groups[0]))
    values = [True, False, None, 0, 0.0, 1, 1.0, 2.0, 1e308, 1e-320, 5, [0.0, 0.0], [1.0, 1.0], [0.9, 2.0], [0.9, 1.0],
              [1, 0], [0.9], [], "x", Raw("1" + "0" * 400), [Raw("1" + "0" * 400), 0.9]]  # fmt: skip
    value = dice.one_of(values)
    groups[0][name] = value
    return Mutant("optimizer", f"{policy_id}: {name} = {shown(value)}", source.with_state(state))


def optimizer_step(source: Source, dice: Dice) -> Mutant:
    """How many steps it has taken, and its moments."""
    file = dice.one_of([name for name in source.tensor_files if name.startswith("optimizer")])
    tensors = tensors_of(as_bytes(source.files[file]))
    kind = dice.one_of(["step", "exp_avg", "exp_avg_sq"])
    value = dice.one_of([-1.0, 0.0, 0.5, 1e6, 2.0**53, 2.0**63, 3e38, -3e38, -1e-3])
    for name, (dtype, shape, data) in list(tensors.items()):
        if name.endswith("/" + kind):
            tensors[name] = (dtype, shape, np.full(len(data) // 4, value, np.float32).tobytes())
    return Mutant("optimizer tensors", f"{file}: all {kind} {value}", source.with_file(file, to_safetensors(tensors)))


def weights(source: Source, dice: Dice) -> Mutant:
    """Weights as large as float32 holds, in one layer or in all."""
    file = dice.one_of([name for name in source.tensor_files if name.startswith("policy")])
    tensors, value = tensors_of(as_bytes(source.files[file])), dice.one_of([3e38, -3e38, 1e20, 1e10, 0.0, 1e-45])
    chosen = list(tensors) if dice.number(2) else [dice.one_of(sorted(tensors))]
    for name in chosen:
        dtype, shape, data = tensors[name]
        signs = 2 * dice.rng.integers(0, 2, len(data) // 4) - 1
        tensors[name] = (dtype, shape, (signs * value).astype(np.float32).tobytes())
    what = f"{file}: {value} in {'all' if len(chosen) > 1 else chosen[0]}"
    return Mutant("weights", what, source.with_file(file, to_safetensors(tensors)))


def specs(source: Source, dice: Dice) -> Mutant:
    """Policies that cannot be built."""
    state = source.state
    plain = [policy_id for policy_id, spec in state["specs"].items() if spec]
    if not plain:
        return state_leaf(source, dice)
    policy_id = dice.one_of(sorted(plain))
    given = state["specs"][policy_id]["hyperparameters"]
    kwargs = given.setdefault("policy_kwargs", {}) or {}
    where, name, value = dice.one_of(_SPECS)
    (kwargs if where == "policy_kwargs" else given if where == "hyperparameters" else state["specs"][policy_id])[
        name
    ] = value
    return Mutant("specs", f"{policy_id}: {where}/{name} = {shown(value)}", source.with_state(state))


_SPECS: list[tuple[str, str, Any]] = [
    *(("policy_kwargs", "net_arch", value) for value in (
        [0], [-1], [8, 4, 4], [1] * 2000, "64", {"pi": [8], "vf": 5}, {"pi": "ab"},
        {"x": [1]}, [[8]], [8.5], [True], None, [{"pi": [8]}], {}, [None], [2**62], [8, 4.0],
    )),
    *(("policy_kwargs", name, value) for name, value in (
        ("activation_fn", "relu"), ("activation_fn", "os.system"), ("activation_fn", 3), ("activation_fn", None),
        ("ortho_init", 3), ("log_std_init", 1e308), ("log_std_init", "x"), ("log_std_init", -1e308),
        ("full_std", "x"), ("use_expln", 1), ("squash_output", True), ("features_extractor_class", "os.system"),
        ("features_extractor_class", None), ("features_extractor_class", {}), ("features_extractor_kwargs", {"x": 1}),
        ("features_extractor_kwargs", {"features_dim": 2**14}), ("features_extractor_kwargs", []),
        ("share_features_extractor", False), ("normalize_images", "x"), ("optimizer_class", "torch.optim.Adam"),
        ("optimizer_class", None), ("optimizer_kwargs", {"capturable": True}), ("optimizer_kwargs", {"fused": True}),
        ("optimizer_kwargs", {"amsgrad": True}), ("optimizer_kwargs", {"lr": 1}), ("optimizer_kwargs", {"betas": 1}),
        ("optimizer_kwargs", {"betas": [1.0, 1.0]}), ("optimizer_kwargs", {"eps": 0}), ("optimizer_kwargs", []),
        ("optimizer_kwargs", {"differentiable": True}), ("optimizer_kwargs", {"foreach": True}),
        ("optimizer_kwargs", {"maximize": True}), ("optimizer_kwargs", {"weight_decay": 1e308}),
        ("observation_space", None), ("action_space", {}), ("lr_schedule", 1), ("use_sde", True), ("self", 1),
    )),
    *(("hyperparameters", name, value) for name, value in (
        ("algorithm", "x"), ("policy", "x"), ("self", 1), ("cls", 1), ("__class__", 1), ("env", "os:system"),
        ("device", "cuda"), ("device", "meta"), ("tensorboard_log", "/tmp/x"), ("_init_setup_model", False),
        ("rollout_buffer_class", "x"), ("stats_window_size", 2**14), ("n_epochs", 0),
        ("batch_size", 1), ("batch_size", 0), ("batch_size", 72), ("batch_size", 2**14), ("n_steps", 23),
        ("learning_rate", 1e308), ("learning_rate", "lin_1e308"), ("learning_rate", "lin_" + "9" * 5000),
        ("learning_rate", "exp_1"), ("learning_rate", 0), ("learning_rate", -1), ("learning_rate", []),
        ("gamma", 2), ("gamma", 0), ("gae_lambda", -1), ("clip_range", 1e308), ("clip_range_vf", 1e-300),
        ("ent_coef", 1e308), ("vf_coef", 1e308), ("max_grad_norm", 1e-320), ("max_grad_norm", 1e308),
        ("target_kl", 1e-300), ("use_sde", True), ("sde_sample_freq", -1), ("sde_sample_freq", 2**14),
        ("normalize_advantage", False), ("policy_kwargs", None), ("policy_kwargs", []), ("policy_kwargs", "x"),
        ("x" * 20000, 1), ("learning_rat", 1), ("\x1b[31m", 1), ("seed", 3), ("verbose", 2),
    )),
    *(("", name, value) for name, value in (
        ("algorithm", "os.system"), ("algorithm", ""), ("algorithm", None), ("algorithm", "x" * 20000),
        ("policy", "CnnPolicy"), ("policy", "MultiInputPolicy"), ("policy", "os.system"), ("policy", None),
        ("hyperparameters", None), ("hyperparameters", []),
    )),
]  # fmt: skip


def action_log(source: Source, dice: Dice) -> Mutant:
    """Actions that nobody can have taken, and logs that never end."""
    tensors = tensors_of(as_bytes(source.files[ARRAYS]))
    logs = [name for name in tensors if "/log/actions/" in name]
    if not logs:
        return tensor_values(source, dice)
    length = dice.one_of([0, 1, 500, 5000, 40_000])
    how = dice.number(2)
    for name in logs:
        dtype, shape, data = tensors[name]
        step = len(data) // max(1, shape[0])
        if how == 0 and step:
            tensors[name] = (dtype, [length, *shape[1:]], (data[:step] or bytes(step)) * length)
        elif data:
            values = np.frombuffer(data, DTYPES[dtype]).copy()
            values[dice.number(len(values))] = dice.one_of(extremes(DTYPES[dtype]))
            tensors[name] = (dtype, shape, values.tobytes())
    if how == 0:
        for name in [name for name in tensors if name.endswith("/log/lengths")]:
            dtype, shape, data = tensors[name]
            lengths = np.frombuffer(data, np.int64) * dice.number(2)
            lengths[0] = length - lengths[1:].sum()
            tensors[name] = (dtype, shape, lengths.tobytes())
    what = f"{length} steps" if how == 0 else "an impossible action"
    return Mutant("action log", what, source.with_file(ARRAYS, to_safetensors(tensors)))


def env_arrays(source: Source, dice: Dice) -> Mutant:
    """Where the envs are: cells, times, who is active, what was seen."""
    found = [name for file, name in source.arrays if file == ARRAYS and name.startswith(("/env/", "/tracker/"))]
    name = dice.one_of(found)
    dtype, shape, data = tensors_of(as_bytes(source.files[ARRAYS]))[name]
    values = np.frombuffer(data, DTYPES[dtype]).copy()
    value = dice.one_of(extremes(DTYPES[dtype]))
    if values.size:
        values[slice(None) if dice.number(2) else dice.number(values.size)] = value
    tensor = (dtype, shape, values.tobytes())
    if dtype == "BOOL" and dice.number(3) == 0:
        tensor = (dtype, shape, bytes([dice.one_of([2, 3, 128, 255])]) * len(data))
    return Mutant("env state", f"{name}: {value}", source.with_tensor(ARRAYS, name, tensor))
