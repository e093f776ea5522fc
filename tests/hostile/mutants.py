"""Mutants of checkpoints, `config.yaml` and data sets: what damage, ignorance or malice may make of them, by a seed.

Most checkpoints bring a manifest that agrees with what they did, so that they reach what lies behind size and SHA-256.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml
from checkpoint_source import (
    ARRAYS,
    DTYPES,
    MANIFEST,
    STATE,
    Files,
    Odd,
    Raw,
    Source,
    at,
    nodes,
    pack,
    sealed,
    tensors_of,
    to_json,
    to_safetensors,
    unpack,
)
from data_sets import CASES, MAIN
from guided import changed

CONFIG = "config.yaml"


@dataclass
class Mutant:
    """A folder that only looks like a checkpoint, or is one with other numbers in it; or another `config.yaml`."""

    kind: str
    what: str
    files: Files


class Dice:
    """A generator of random numbers, with the questions that mutations ask."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def number(self, below: int) -> int:
        return int(self.rng.integers(below))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.number(len(choices))]


_NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 7, 255, 624, 625, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 2**128, -(2**63) - 1, 0.5, -0.0,
    1e-320, 1e39, 1e308, Raw("1" + "0" * 400), Raw("1" + "0" * 5000), Raw("1e999"), Raw("NaN"), Raw("-Infinity"),
)  # fmt: skip
_TEXTS: tuple[Any, ...] = (
    "", "shared", "agent1", "PCG64", "ppo", "dqn", "CnnPolicy", "lin_1e999", "os:system", "cos\nsystem\n(S'id'\ntR.",
    "../../etc/passwd", "\x00", "\x1b[31mred\x1b]0;title\x07", "\u202egnp.exe", "x" * 20000, Raw('"\\ud800"'), "$array",
)  # fmt: skip
_TREES: tuple[Any, ...] = (
    None, True, [], {}, [0], [[], {}], {"": {}}, {"$array": "/nowhere"}, {"$array": 1}, {"$array": "/random/torch"},
    {"$array": "/random/torch", "more": 1}, [0] * 2000, {"__reduce__": ["os.system", "id"]},
    Raw("[" * 900 + "]" * 900), Raw('{"a":1,"a":2}'),
)  # fmt: skip
HOSTILE = (*_NUMBERS, *_TEXTS, *_TREES)


def _shown(path: Sequence[Any], value: Any) -> str:
    return f"{'/'.join(map(str, path))} = {value!r:.60}"


# --- Bytes and files -------------------------------------------------------------------------------------------------


def flipped_bytes(source: Source, dice: Dice) -> Mutant:
    """Any bytes of any file, of half of them in the first kilobyte; the manifest agrees or does not know."""
    name = dice.one_of(sorted(source.files))
    changed = bytearray(source.data(name))
    places = [dice.number(min(len(changed), dice.one_of([1000, 2**40]))) for _ in range(dice.one_of([1, 2, 40]))]
    for place in places:
        changed[place] = dice.one_of([changed[place] ^ 1 << dice.number(8), dice.number(256), 0, 255])
    files = {**source.files, name: bytes(changed)}
    agreed = name != MANIFEST and dice.number(4) > 0
    return Mutant("bytes flipped", f"{name}: {places[:4]}", sealed(files) if agreed else files)


def cut(source: Source, dice: Dice) -> Mutant:
    """Too short, empty or too long."""
    name = dice.one_of(sorted(source.files))
    data = source.data(name)
    data = data[: dice.one_of([0, 1, 8, len(data) - 1, dice.number(len(data))])] if dice.number(4) else data + bytes(9)
    return Mutant("cut or extended", f"{name} has {len(data)} bytes", source.with_file(name, data))


class _Bomb:
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.system, ("touch /tmp/marl_sb3_was_here",)


_PAYLOADS = (
    *(pickle.dumps(_Bomb(), protocol) for protocol in (0, 5)), b"PK\x03\x04", b"\x7fELF", b"null", b"{}", b"", bytes(8),
    b"!!python/object/apply:os.system ['touch /tmp/marl_sb3_was_here']\n",
)  # fmt: skip
_ODD = (
    Odd("link", "/dev/zero"), Odd("link", "/etc/passwd"), Odd("link", "."), Odd("pipe"), Odd("folder"),
    Odd("sparse", 2**32), Odd("sparse", 2**40),
)  # fmt: skip


def other_content(source: Source, dice: Dice) -> Mutant:
    """Something that is no regular file, or a file of another format, under an allowed name."""
    name, content = dice.one_of(sorted(source.files)), dice.one_of([*_ODD, *_PAYLOADS])
    files = {**source.files, name: content}
    if isinstance(content, Odd) and content.kind == "sparse" and name != MANIFEST:
        manifest = source.tree(MANIFEST)
        manifest["files"][name]["size"] = content.target
        files[MANIFEST] = to_json(manifest)
        return Mutant("other content", f"{name}: {content}", files)
    return Mutant("other content", f"{name}: {content!r:.40}", source.with_file(name, content))


def other_files(source: Source, dice: Dice) -> Mutant:
    """Files of another training, under each other's names, missing ones, odd names."""
    other, files = dice.one_of(source.others), dict(source.files)
    name = dice.one_of([name for name in sorted(files) if name != MANIFEST])
    how = dice.number(4)
    if how == 0:
        files = {**files, **{each: other[each] for each in dice.one_of([list(other), [STATE, ARRAYS], [STATE]])}}
    elif how == 1:
        files[name] = files[dice.one_of(source.tensor_files)]
    elif how == 2:
        del files[name]
    else:
        odd = ["evil.pkl", "STATE.JSON", "policy-999.safetensors", "x" * 250, "policy-\u0660\u0660\u0660.safetensors"]
        files[dice.one_of(odd)] = files[name]
    return Mutant("other files", f"{('of another run', 'swapped', 'missing', 'more')[how]}: {name}", sealed(files))


# --- JSON ------------------------------------------------------------------------------------------------------------


def json_value(source: Source, dice: Dice) -> Mutant:
    """A hostile value anywhere in `state.json` or the manifest, a number that is almost right, a field less or more."""
    file = dice.one_of([STATE] * 9 + [MANIFEST])
    tree = source.tree(file)
    path, found = dice.one_of(list(nodes(tree)))
    value, how = dice.one_of(HOSTILE), dice.number(8)
    if isinstance(found, (int, float)) and how > 4:
        value = dice.one_of([found + 1, found - 1, -found, found * 10**6, float(found), bool(found), str(found)])
    node = at(tree, path[:-1])
    if how == 0:
        del node[path[-1]]
        value = "missing"
    elif how == 1 and isinstance(node, dict):
        node[dice.one_of(["more", "", "$array", *node])] = value
    elif how == 1:
        node.insert(0, value)
    else:
        node[path[-1]] = value
    return Mutant("JSON value", f"{file}: {_shown(path, value)}", source.with_tree(tree, file))


def json_text(source: Source, dice: Dice) -> Mutant:
    """JSON that is wrong as a text, or right and monstrous."""
    file = dice.one_of([STATE, MANIFEST])
    text = source.data(file)
    body = text[1:-1]
    texts: Sequence[bytes] = (
        b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"[" + text + b"]", b"null", b"  ",
        b'{"x":' + b"[" * 980 + b"]" * 980 + b"," + body + b"}", b'{"x":' + b"9" * 10**6 + b"," + body + b"}",
        b"\xef\xbb\xbf" + text, text.decode().encode("utf-16"), b'{"\xe4":1,' + body + b"}", b"\x00" * 1000 + text,
        text + text, b"/* */" + text, text.replace(b'"', b"'"), b"{" + body + b"," + body + b"}", b"NaN",
        b'{"\\ud800":"\\udfff",' + body + b"}", text + b" " * 2**25,
    )  # fmt: skip
    content = dice.one_of(texts)
    return Mutant("JSON text", f"{file}: {content[:40]!r}, {len(content)} bytes", source.with_file(file, content))


# --- Tensors ---------------------------------------------------------------------------------------------------------


def tensor_header(source: Source, dice: Dice) -> Mutant:
    """Lies in the header of a safetensors file: offsets, shapes, dtypes, names, its length."""
    file = dice.one_of(source.tensor_files)
    header, payload = unpack(source.data(file))
    name = dice.one_of(sorted(header) or ["x"])
    sizes = [0, 1, -1, len(payload), 2**31, 2**62, 2**63, 2**64 - 1, 2**64, 0.5, None, "1"]
    key, value = dice.one_of(
        [
            ("data_offsets", [dice.one_of(sizes) for _ in range(dice.one_of([1, 2, 2, 2, 3]))]),
            ("shape", [dice.one_of(sizes) for _ in range(dice.number(5))]),
            ("shape", [0] * 33),
            ("dtype", dice.one_of([*DTYPES, "BF16", "F4", "C64", "O", None, []])),
            (dice.one_of(["dtype", "shape", "data_offsets", "more"]), dice.one_of(HOSTILE)),
        ]
    )
    header.setdefault(name, {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]})[key] = value
    if dice.number(5) == 0:
        header[dice.one_of(["__metadata__", name + " ", "\u202e"])] = header.pop(name)
    length = dice.one_of([None] * 9 + [0, 1, 2**31, 2**63, 2**64 - 1])
    what = f"{file}, {_shown([name, key], value)}, length {length}"
    return Mutant("tensor header", what, source.with_file(file, pack(header, payload, length)))


def _extremes(dtype: np.dtype[Any]) -> list[Any]:
    if dtype.kind == "f":
        info = np.finfo(dtype)
        return [np.nan, np.inf, -np.inf, info.max, info.min, info.smallest_subnormal, -1.0, 0.0, 1e30, -1e18]
    if dtype.kind == "b":
        return [False, True]
    limits = np.iinfo(dtype)
    return [limits.min, limits.max, *(n for n in (0, 1, -1, 5, 17, 99, 625, 2**31) if limits.min <= n <= limits.max)]


def tensor_values(source: Source, dice: Dice) -> Mutant:
    """Other numbers of the right dtype and shape: extremes, NaN, random bytes; of optimizers as well."""
    file, name = dice.one_of(source.arrays)
    dtype, shape, data = tensors_of(source.data(file))[name]
    values, value = np.frombuffer(data, DTYPES[dtype]).copy(), dice.one_of(_extremes(DTYPES[dtype]))
    if values.size:
        values[slice(None) if dice.number(2) else dice.number(values.size)] = value
    content = dice.rng.bytes(len(data)) if dice.number(5) == 0 else values.tobytes()
    return Mutant("tensor values", f"{file}, {name}: {value}", source.with_tensor(file, name, (dtype, shape, content)))


def tensor_form(source: Source, dice: Dice) -> Mutant:
    """Another shape or dtype, with as many numbers as it says; missing tensors, and some under each other's names."""
    file, name = dice.one_of(source.arrays)
    tensors = tensors_of(source.data(file))
    dtype, shape, data = tensors[name]
    how = dice.number(4)
    if how == 0:
        del tensors[name]
    elif how == 1:
        other = dice.one_of(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], tensors[name]
    elif how == 2:
        dtype = dice.one_of(list(DTYPES))
        with np.errstate(all="ignore"):
            values = np.frombuffer(data, DTYPES[tensors[name][0]]).astype(DTYPES[dtype])
        tensors[name] = (dtype, shape, values.tobytes())
    else:
        shape = dice.one_of([[], [0], [1], [*shape, 1], [1, *shape], shape[::-1], shape[1:], [2, *shape], [1] * 33])
        size = int(np.prod(shape)) * DTYPES[dtype].itemsize
        tensors[name] = (dtype, shape, (data * (size // max(1, len(data)) + 1))[:size].ljust(size, b"\x00"))
    return Mutant("tensor form", f"{file}, {name}: {dtype} {shape}", source.with_file(file, to_safetensors(tensors)))


# --- By someone who knows what the fields mean -----------------------------------------------------------------------


def torch_generator(source: Source, dice: Dice) -> Mutant:
    """PyTorch's generator, whose indices PyTorch itself does not check against each other."""
    dtype, shape, data = tensors_of(source.data(ARRAYS))["/random/torch"]
    raw = bytearray(data)
    struct.pack_into("<i", raw, 8, dice.one_of([0, -1, 1, 300, 624, 625, 2**31 - 1]))
    struct.pack_into("<Q", raw, 16, dice.one_of([0, 1, 300, 624, 625, 2**31, 2**64 - 1]))
    if dice.number(2):
        struct.pack_into(*dice.one_of([("<i", raw, 12, 2), ("<d", raw, 5016, np.nan), ("<i", raw, 5040, 2)]))
    tensor = (dtype, shape, bytes(raw))
    return Mutant("torch generator", bytes(raw[8:24]).hex(), source.with_tensor(ARRAYS, "/random/torch", tensor))


def optimizer(source: Source, dice: Dice) -> Mutant:
    """Settings that PyTorch does not look at when they are loaded."""
    state = source.tree()
    policy_id = dice.one_of(sorted(state["policies"]))
    group = state["policies"][policy_id]["optimizers"]["policy.optimizer"][0]
    name = dice.one_of(sorted(group))
    group[name] = dice.one_of([True, None, 0, 1.0, 1e308, 1e-320, [1.0, 1.0], [0.9, 2.0], [0.9], [], "x", *HOSTILE])
    return Mutant("optimizer", _shown([policy_id, name], group[name]), source.with_tree(state))


_SPECS: tuple[tuple[str, str, Any], ...] = (
    *(("policy_kwargs", name, value) for name, value in (
        ("net_arch", [0]), ("net_arch", [8, 4, 4]), ("net_arch", "64"), ("net_arch", {"pi": [8], "vf": 5}),
        ("net_arch", {"x": [1]}), ("net_arch", [8.5]), ("net_arch", [2**62]), ("activation_fn", "os.system"),
        ("activation_fn", 3), ("ortho_init", 3), ("log_std_init", "x"), ("squash_output", True),
        ("features_extractor_class", "os.system"), ("features_extractor_kwargs", {"x": 1}),
        ("features_extractor_class", "attention"), ("features_extractor_kwargs", {"activation_fn": "os.system"}),
        ("optimizer_class", "torch.optim.Adam"), ("optimizer_kwargs", {"capturable": True}),
        ("optimizer_kwargs", {"fused": True}), ("optimizer_kwargs", {"lr": 1}), ("optimizer_kwargs", {"betas": 1}),
        ("observation_space", None), ("lr_schedule", 1), ("self", 1),
    )),
    *(("hyperparameters", name, value) for name, value in (
        ("algorithm", "x"), ("self", 1), ("cls", 1), ("env", "os:system"), ("device", "meta"), ("tensorboard_log", "x"),
        ("_init_setup_model", False), ("rollout_buffer_class", "x"), ("n_epochs", 0), ("n_steps", 23),
        ("batch_size", 0), ("learning_rate", "lin_" + "9" * 5000), ("learning_rate", []), ("gamma", 2),
        ("clip_range", 1e308), ("policy_kwargs", "x"), ("x" * 20000, 1), ("\x1b[31m", 1), ("seed", 3),
    )),
    *(("", name, value) for name, value in (
        ("algorithm", "os.system"), ("algorithm", None), ("policy", "CnnPolicy"), ("policy", "os.system"),
        ("policy", None), ("hyperparameters", []),
    )),
)  # fmt: skip


def specs(source: Source, dice: Dice) -> Mutant:
    """Policies that cannot be built."""
    state = source.tree()
    plain = [policy_id for policy_id, spec in state["specs"].items() if spec]
    if not plain:
        return json_value(source, dice)
    spec = state["specs"][dice.one_of(sorted(plain))]
    given = spec["hyperparameters"]
    where, name, value = dice.one_of(_SPECS)
    kwargs = given.setdefault("policy_kwargs", {}) or {}
    {"policy_kwargs": kwargs, "hyperparameters": given, "": spec}[where][name] = value
    return Mutant("specs", _shown([where, name], value), source.with_tree(state))


def action_log(source: Source, dice: Dice) -> Mutant:
    """Actions that nobody can have taken, and logs of other lengths."""
    tensors = tensors_of(source.data(ARRAYS))
    logs = [name for name in tensors if "/log/" in name]
    if not logs:
        return tensor_values(source, dice)
    name, factor = dice.one_of(logs), dice.one_of([0, 1, 2, 100])
    dtype, shape, data = tensors[name]
    values = np.frombuffer(data, DTYPES[dtype]).copy()
    if factor == 1 and values.size:
        values[dice.number(values.size)] = dice.one_of(_extremes(DTYPES[dtype]))
    tensors[name] = (dtype, [factor * shape[0], *shape[1:]], values.tobytes() * factor)
    return Mutant("action log", f"{name} x {factor}", source.with_file(ARRAYS, to_safetensors(tensors)))


_FAMILIES: tuple[Callable[[Source, Dice], Mutant], ...] = (
    flipped_bytes, flipped_bytes, cut, other_content, other_content, other_files, json_value, json_value, json_value,
    json_value, json_value, json_value, json_text, tensor_header, tensor_header, tensor_values, tensor_values,
    tensor_values, tensor_form, tensor_form, torch_generator, optimizer, specs, specs, action_log,
)  # fmt: skip


def make_mutant(source: Source, seed: int, index: int) -> Mutant:
    """The mutant of this number; the families take turns."""
    return _FAMILIES[index % len(_FAMILIES)](source, Dice(seed, index))


# --- config.yaml -----------------------------------------------------------------------------------------------------

_TAGS = (
    "!!python/object/apply:os.system ['touch /tmp/marl_sb3_was_here']", "!!python/name:os.system", "!!int x",
    "!!python/object:subprocess.Popen {}", "!!python/module:antigravity", "!!int 9" + "9" * 5000, "!!binary ???",
    "!!timestamp x", "!!set {a, b}", "!!omap [a: 1, a: 2]", "!unknown x", "2001-99-99", "0x" + "f" * 5000, "1e400",
    ".nan", "{? [a] : b}", "{<<: 1}", "{<<: {a: 1}}", "*nobody", "&a [*a]", "&a {*a : *a}", '"\\ud800"', "=",
    '"\\x1b[31mred"',
)  # fmt: skip
_SETTINGS: tuple[tuple[str, Any], ...] = (
    ("n_envs", 10**9), ("n_threads", 2**31), ("stats_window_size", 2**63), ("checkpoints", 1), ("seed", -1),
    ("evaluation", {"x": {}}), ("hyperparameters", {"n_envs": 1}), ("device", "meta"), ("device", "cuda:99"),
    ("policy", "os.system"), ("policies", "other"), ("vectorizer", "x"), ("stop", {"iteration": 10**400}),
    ("extensions", "x"), ("init_from", ["/etc/passwd"]), ("custom_metrics", {"a": {"reduce": "os.system"}}),
    ("env_kwargs", {"height": 10**12}), ("env_kwargs", {"render_mode": "human"}), ("env_kwargs", {"x": 1}),
    ("policy_kwargs", {"features_extractor_class": "os.system"}), ("policy_kwargs", {"activation_fn": "os.system"}),
    ("learning_rate", "lin_" + "9" * 5000), ("x" * 20000, 1), ("policies_to_train", ["nobody"]),
    ("policy_settings", {"agent1": {"algo": "os.system"}}),
)  # fmt: skip
_ENVS = ("os:system", "subprocess:Popen", "antigravity:x", "..:x", "/etc/passwd", "unknown", "x" * 20000, 1, None)
_LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
_FILES: tuple[bytes | Odd, ...] = (
    *_ODD, _LAUGHS.encode(), f"{_LAUGHS}arena: {{policies: *a11}}\n".encode(), b"arena: " + b"[" * 100_000,
    b"arena: " + b"{a: " * 20_000, b"#" * 10**7, b"\xff\xfe", b"arena: {\xe4: 1}", b"", b"arena", b"- arena", b"\x00",
)  # fmt: skip


def make_config_mutant(text: str, seed: int, index: int) -> Mutant:
    """The mutant of this number: another `config.yaml` alone."""
    dice = Dice(seed, index)
    tree = yaml.safe_load(text)
    ((env, settings),) = tree.items()
    how = dice.one_of(["value", "setting", "setting", "env", "tag", "file"])
    content: bytes | Odd
    if how == "file":
        content = dice.one_of(_FILES)
        what = repr(content)[:60]
    elif how == "tag":
        lines, what = text.splitlines(), dice.one_of(_TAGS)
        place = dice.number(len(lines))
        lines[place] = f"{lines[place].partition(':')[0]}: {what}"
        content = "\n".join(lines).encode()
    else:
        if how == "setting":
            name, value = dice.one_of(_SETTINGS)
            inner = settings.get("hyperparameters", {})
            (inner if name in inner else settings)[name] = value
        elif how == "env":
            name, value = env, dice.one_of(_ENVS)
            tree = {value: settings}
        else:
            path, _ = dice.one_of(list(nodes(tree)))
            name, value = path[-1], dice.one_of([each for each in HOSTILE if not isinstance(each, Raw)])
            at(tree, path[:-1])[name] = value
        what, content = _shown([name], value), yaml.safe_dump(tree, sort_keys=False).encode("utf-8", "surrogatepass")
    return Mutant(f"{CONFIG}: {how}", what[:80], {CONFIG: content})


# --- Data sets -------------------------------------------------------------------------------------------------------

_SHAPES = ((), (0,), (1,), (4,), (5,), (3, 4), (4, 1), (5, 2), (5, 9, 9), (2**20,), (10**12,), (4, 10**12), (1,) * 32)
_TYPES = ("f2", "f4", "f8", "i1", "i8", "u8", "?", "S3", "i4,f4", "c16", h5py.string_dtype(), h5py.ref_dtype)


def spoil_data_set(folder: Path, outside: Path, dice: Dice) -> str:
    """Make a valid data set a hostile one, of which a part is damaged besides; returns what was done."""
    case = dice.one_of([*CASES, *["valid"] * len(CASES)])
    CASES[case].spoil(folder, outside)
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    files = [path for path in found if path.stat().st_size < 10**6]
    file = dice.one_of(files) if files else None
    if file is None or dice.number(5) == 0:
        return case
    if file.suffix == ".hdf5" and file.name != MAIN and dice.number(2):
        return f"{case}; {file.name}: {_other_array(file, dice)}"
    if file.suffix == ".json" and dice.number(2):
        return f"{case}; {file.name}: {_other_json(file, dice)}"
    data = changed(file.read_bytes(), random.Random(dice.number(2**32)))
    file.write_bytes(data)
    return f"{case}; {file.name}: {len(data)} bytes"


def _other_array(file: Path, dice: Dice) -> str:
    """Put an array, or an attribute, of any shape and type in the place of something."""
    shape, kind, fill = dice.one_of(_SHAPES), dice.one_of(_TYPES), dice.one_of([None, None, 0, -1, np.nan, 1e308])
    try:
        with h5py.File(file, "r+") as opened:
            names = list[str]()
            opened.visit(names.append)
            name = dice.one_of(names)
            if dice.number(4) == 0:
                opened[name].attrs[dice.one_of(["id", "total_steps", "seed", "x"])] = dice.one_of([-1, 2**63, "x", 0.5])
                return f"attribute of {name}"
            del opened[name]
            opened.create_dataset(name, shape, kind, fillvalue=fill)
    except (OSError, LookupError, AttributeError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        return f"HDF5 refuses {shape} {kind}: {error!r:.60}"  # the file is what was made of it so far
    return f"{name}: {shape} {kind} of {fill}"


def _other_json(file: Path, dice: Dice) -> str:
    """Put a hostile value in the place of any value."""
    try:
        tree = json.loads(file.read_bytes())
        path, _ = dice.one_of(list(nodes(tree)))
    except (ValueError, IndexError, RecursionError):
        return "no JSON any more"
    value = dice.one_of(HOSTILE)
    at(tree, path[:-1])[path[-1]] = value
    file.write_bytes(to_json(tree))
    return _shown(path, value)
