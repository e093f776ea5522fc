"""MaskableA2C and MaskableTRPO: with all actions allowed they are A2C and TRPO; what is forbidden learns nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch as th
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_envs import CHOICES, Forbidding, ScriptedEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.wrappers.observations import choices_of

NETWORK: dict[str, Any] = {"net_arch": [6]}
A2C: dict[str, Any] = {"n_steps": 8, "policy_kwargs": NETWORK, "ent_coef": 0.1, "learning_rate": 0.01}
TRPO: dict[str, Any] = {"n_steps": 8, "batch_size": 8, "policy_kwargs": NETWORK, "learning_rate": 0.01}
KINDS = {"a2c": A2C, "trpo": TRPO}


def trained(algo: str, space: str, path: str, iterations: int = 3, allows_all: bool = False, **more: Any) -> Any:
    env = make_vec_env(lambda: Forbidding(CHOICES[space], allows_all), n_envs=2, seed=1)
    settings = {**KINDS[algo.removeprefix("maskable_")], **more}
    spec = PolicySpec(algo, **settings)
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, n_steps=8, seed=3, device="cpu", update_path=path)
    before = {name: value.clone() for name, value in algorithm.policies["p"].policy.state_dict().items()}
    for _ in range(iterations):
        metrics = algorithm.train_iteration()["learners"]["p"]
    return algorithm.policies["p"], before, metrics, env


PATHS = ("torch", "fused")
OF_KERNELS = ("Discrete", "MultiDiscrete")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("space", OF_KERNELS)
@pytest.mark.parametrize("algo", KINDS)
def test_with_all_actions_allowed_it_trains_as_without_masks(algo: str, space: str, path: str) -> None:
    """To the bit where the kernels update; sb3-contrib's distributions normalise logits a second time."""
    ours, *_ = trained(f"maskable_{algo}", space, path, allows_all=True)
    plain, *_ = trained(algo, space, path, allows_all=True)
    exact = (algo, path) == ("a2c", "fused")
    for name, value in plain.policy.state_dict().items():
        found = ours.policy.state_dict()[name]
        assert th.equal(found, value) if exact else th.allclose(found, value, atol=1e-4), name


@pytest.mark.parametrize(
    ("space", "path"), [*((space, "torch") for space in CHOICES), *((space, "fused") for space in OF_KERNELS)]
)
@pytest.mark.parametrize("algo", KINDS)
def test_what_is_forbidden_is_never_taken_and_learns_nothing(algo: str, space: str, path: str) -> None:
    algorithm, before, _, env = trained(f"maskable_{algo}", space, path)
    taken = [action for received in env.call("received", range(2)) for each in received for action in each.values()]
    last = np.array([np.ravel(action)[-1] for action in taken])
    assert len(last) > 2 * 8
    assert last.max() < (choices_of(CHOICES[space]) or ())[-1] - 1
    after = algorithm.policy.state_dict()
    for name in ("action_net.weight", "action_net.bias"):
        learned = (after[name] - before[name]).abs()
        # sb3-contrib's distributions normalise over all actions first, and what cancels out leaves its rounding.
        assert learned[-1].max() <= (0 if (algo, path) == ("a2c", "fused") else 1e-5)
        assert learned[:-1].max() > 1e-3


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("space", OF_KERNELS)
def test_an_update_of_a2c_is_one_of_sb3_contribs_maskable_ppo_that_takes_one_step_for_each_rollout(
    space: str, path: str
) -> None:
    """The gradient of PPO's surrogate is the policy gradient where the policy is still the one that has acted."""
    ours, before, *_ = trained("maskable_a2c", space, path, use_rms_prop=False)
    env = make_vec_env(lambda: Forbidding(CHOICES[space]), n_envs=2, seed=1)
    settings = {**A2C, "gae_lambda": 1.0, "normalize_advantage": False, "batch_size": 32, "n_epochs": 1}
    spec = PolicySpec(sb3_contrib.MaskablePPO, **settings)
    stock = MultiAgentAlgorithm(env, {"p": spec}, n_steps=8, seed=3, device="cpu")
    for name, value in stock.policies["p"].policy.state_dict().items():
        assert th.equal(value, before[name]), name
    for _ in range(3):
        stock.train_iteration()
    for name, value in stock.policies["p"].policy.state_dict().items():
        assert th.allclose(ours.policy.state_dict()[name], value, atol=1e-4), name
        assert not th.equal(before[name], value)


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("space", CHOICES)
def test_trpo_bounds_the_divergence_of_the_choices_among_allowed_actions(space: str, factor: int) -> None:
    """Recomputed in NumPy from the observations of the rollout: softmaxes over what is allowed, before and after."""
    sizes, divergences = choices_of(CHOICES[space]) or (), []
    env = make_vec_env(lambda: Forbidding(CHOICES[space]), n_envs=2, seed=1)
    spec = PolicySpec("maskable_trpo", **TRPO, target_kl=0.05, sub_sampling_factor=factor)
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, n_steps=8, seed=3, device="cpu")
    ours: Any = algorithm.policies["p"]

    def log_probs(observations: th.Tensor) -> list[np.ndarray]:
        with th.no_grad():
            logits = ours.policy.action_net(ours.policy.mlp_extractor.forward_actor(observations)).numpy()
        logits = logits.astype(np.float64)
        logits[:, -1] = -np.inf  # forbidden
        parts = np.split(logits, np.cumsum(sizes)[:-1], axis=1)
        return [part - np.log(np.exp(part).sum(axis=1, keepdims=True)) for part in parts]

    def train() -> None:
        draw, seen = ours.rollout_buffer.get, []

        def get(batch_size: int | None = None) -> Any:
            for batch in draw(batch_size):
                seen.append(batch.observations[::factor])
                if batch_size is None:
                    seen.append(log_probs(seen[0]))
                yield batch

        ours.rollout_buffer.get = get
        type(ours).train(ours)
        new, old = log_probs(seen[0]), seen[1]
        with np.errstate(invalid="ignore"):
            terms = [np.nan_to_num(np.exp(p) * (p - q)).sum(axis=1) for p, q in zip(new, old, strict=True)]
        divergences.append((sum(terms).mean(), ours.logger.name_to_value["train/kl_divergence_loss"]))

    ours.train = train
    algorithm.train_iteration()
    ((recomputed, recorded),) = divergences
    assert recomputed == pytest.approx(recorded, abs=1e-5)
    assert recorded > 0.001


@pytest.mark.parametrize("algo", KINDS)
def test_it_learns_in_sb3s_own_loop_and_from_its_files(algo: str, tmp_path: Path) -> None:
    def env() -> Any:
        return InvalidActionEnvDiscrete(dim=6, n_invalid_actions=3, ep_length=7)

    made: Any = getattr(marl_sb3, f"Maskable{algo.upper()}")
    learning = made("MlpPolicy", DummyVecEnv([env]), seed=3, device="cpu", **KINDS[algo])
    learning.learn(32)
    assert learning.rollout_buffer.action_masks.min() == 0
    learning.save(tmp_path / "saved.zip")
    loaded = made.load(tmp_path / "saved.zip", device="cpu")
    seen, masks = np.eye(6, dtype=np.int64).argmax(1), np.eye(6, dtype=bool)
    for deterministic in (True, False):
        assert loaded.predict(seen, deterministic=deterministic, action_masks=masks)[0].tolist() == [*range(6)]
    expected, found = (each.policy.state_dict() for each in (learning, loaded))
    assert all(th.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("name", ["MaskableA2C", "MaskableTRPO"])
def test_envs_without_masks_and_noise_for_boxes_are_refused(name: str) -> None:
    made = getattr(marl_sb3, name)
    with pytest.raises(ConfigError, match=f"action masks missing for {name}: the env gives none for a, b"):
        MultiAgentAlgorithm(make_vec_env(ScriptedEnv), {"p": PolicySpec(made, n_steps=8)}, device="cpu").learn(16)
    with pytest.raises(ConfigError, match=f"unknown hyperparameter 'use_sde' of {name}"):
        PolicySpec(made, use_sde=True)
