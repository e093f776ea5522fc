"""What every learner promises, whatever its algorithm: a new one joins by a line in `LEARNERS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from learner_kinds import ACTIONS, LEARNERS, Kind, make
from stock_training import leaves
from toy_envs import SampledEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, make_vec_env
from marl_sb3.core.config.algorithms import place_of
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.fast.builtin import ALGORITHMS


class Telling(SampledEnv):
    """Its observations are all different: it notes by them what their agents then did, and what they might have done.

    Args:
        waits: whether agent b waits in the second step; rollouts of 6 steps never end there.
    """

    def __init__(self, action_space: spaces.Space[Any], masked: bool, waits: bool) -> None:
        super().__init__(spaces.Box(-1, 1, (3,)), action_space, {"a": (4, "truncated"), "b": (3, "terminated")}, masked)
        self.rewards = dict.fromkeys("ab", [1.0] * 4)  # a team's
        self.skips = {"b": [1]} if waits else {}
        self.did: dict[bytes, Any] = {}
        self.might: dict[bytes, Any] = {}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, infos = super().reset(seed, options)
        self._note(observations, infos)
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        self.did |= {self._latest[agent].tobytes(): action for agent, action in actions.items()}
        returned = super().step(actions)
        self._note(returned[0], returned[-1])
        return returned

    def _note(self, observations: dict[str, Any], infos: dict[str, Any]) -> None:
        self._latest = observations
        masks = {agent: infos[agent]["action_mask"] for agent in self.agents if self.masked}
        self.might |= {observations[agent].tobytes(): mask for agent, mask in masks.items()}


NOTED = ("did", "might")
LAYOUTS = {"shared": ("shared",), "per agent": ("a", "b"), "central critic": ("shared",)}


each_learner = pytest.mark.parametrize("kind", LEARNERS.values(), ids=LEARNERS)
ON_ITS_OWN_PATH = {name: kind for name, kind in LEARNERS.items() if "PyTorch" not in name}  # which differ in the path
each_on_its_own_path = pytest.mark.parametrize("kind", ON_ITS_OWN_PATH.values(), ids=ON_ITS_OWN_PATH)


def tensors(algorithm: MultiAgentAlgorithm, policy_id: str) -> dict[str, np.ndarray]:
    parameters = algorithm.policies[policy_id].get_parameters()
    return {
        name: th.as_tensor(value).detach().clone().numpy()
        for name, value in leaves(parameters).items()
        if isinstance(value, th.Tensor) or "/state/" in name
    }


def assert_same(one: MultiAgentAlgorithm, other: MultiAgentAlgorithm) -> None:
    for policy_id in one.policies:
        expected, found = tensors(one, policy_id), tensors(other, policy_id)
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=f"{policy_id}/{name}")


def test_every_algorithm_is_tested_here() -> None:
    tested = {kind.algorithm for kind in LEARNERS.values()}
    assert tested >= {*(info.algorithm_class for info in ALGORITHMS.values())}
    assert {place_of(base) for algorithm in tested for base in algorithm.__mro__} >= {
        each.stock for each in ALGORITHMS.values() if each.stock
    }


@pytest.mark.parametrize("kind", [kind for kind in LEARNERS.values() if kind.stock], ids=lambda kind: str(kind.stock))
def test_one_policy_equals_stock_sb3_bit_for_bit(kind: Kind) -> None:
    ours = make(kind, ("shared",), kind.small_envs())
    ours.learn(3 * 6 * 2)
    settings = {**kind.hyperparameters, "policy_kwargs": dict(kind.network)}
    rows = kind.small_envs().as_sb3_vec_env()
    stock = kind.stock(kind.spec().policy, rows, seed=3, device="cpu", **settings)  # type: ignore[call-arg]
    stock.learn(3 * 6 * rows.num_envs)
    for name, value in stock.policy.state_dict().items():
        assert th.equal(value, ours.policies["shared"].policy.state_dict()[name]), name
    assert stock.num_timesteps == ours.policies["shared"].num_timesteps


def paying(kind: Kind, rewards: list[float]) -> Any:
    """Envs that pay so much to agent b, and the same to agent a."""
    script = {"a": (5, "truncated"), "b": (5, "truncated")}
    return kind.scripted(n_envs=2, script=script, rewards={"b": rewards})


class Watch(MultiAgentCallback):
    """Notes what is due after each step, and the metrics of each iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[int] = []
        self.metrics: list[Mapping[str, Any]] = []

    def _on_step(self) -> bool:
        self.due.append(self.algorithm.parts.learners["a"].due_in())
        return True

    def on_iteration_end(self, result: Any) -> bool:
        self.metrics.append(result["learners"]["a"])
        return True


@each_learner
def test_metrics_and_weights_are_of_its_own_agents_and_it_counts_down_to_its_update(kind: Kind) -> None:
    """Its metrics have the names that were announced; what another policy's agents are paid does not matter."""
    watch, algorithm = Watch(), make(kind, env=paying(kind, [1.0] * 5))
    learner = algorithm.parts.learners["a"]
    announced = {name for name in algorithm.metric_names() if name.startswith("learners/a/")}
    assert announced == {f"learners/a/{name}" for name in learner.metric_names}
    assert list(learner.metrics({})) == list(learner.metric_names)
    algorithm.learn(2 * 6 * 2, callback=watch)
    other = make(kind, env=paying(kind, [9.0, -3.0, 5.0, 0.0, 2.0])).learn(2 * 6 * 2)
    of_one, of_other = ({policy_id: tensors(each, policy_id) for policy_id in "ab"} for each in (algorithm, other))
    for name, value in of_one["a"].items():
        np.testing.assert_array_equal(of_other["a"][name], value)
    assert any(not np.array_equal(value, of_other["b"][name]) for name, value in of_one["b"].items())
    metrics = watch.metrics[0]
    assert list(metrics) == list(learner.metric_names)
    assert metrics["num_module_steps_trained"] > 0
    assert metrics["num_grad_updates_lifetime"] > 0
    assert all(metrics[name] is not None for name in kind.losses)
    assert "total_loss" not in metrics or metrics["total_loss"] is not None
    n_steps = kind.hyperparameters[kind.cadence]
    assert watch.due == [n_steps - 1 - step % n_steps for step in range(12)]


@pytest.mark.parametrize(
    "kind", [kind for kind in LEARNERS.values() if kind.cadence == "n_steps"], ids=lambda kind: str(kind.algorithm)
)
def test_a_single_transition_leaves_the_weights_finite(kind: Kind) -> None:
    """Normalised, its advantage would be 0 / 0."""
    env = kind.scripted(script={"a": (1, "terminated"), "b": (9, "terminated")})
    spec = kind.spec(n_steps=6, normalize_advantage=True)
    algorithm = MultiAgentAlgorithm(
        env, {"a": spec, "b": spec}, n_steps=6, seed=0, device="cpu", update_path=kind.update_path
    )
    before = tensors(algorithm, "b")
    algorithm.train_iteration()
    assert all(np.isfinite(value).all() for value in tensors(algorithm, "a").values())
    after = tensors(algorithm, "b")
    assert not all(np.array_equal(value, after[name]) for name, value in before.items())


@each_on_its_own_path
def test_a_training_goes_on_exactly_from_within_a_rollout(kind: Kind, tmp_path: Path) -> None:
    """The second of the iterations of 4 steps ends within rollouts of 6 and of 3; agent b waits meanwhile."""
    whole = make(kind, env=kind.in_turns(), n_steps=4)
    for iteration in (1, 2):
        whole.train_iteration()
        assert whole.num_timesteps == iteration * 4 * 2
    whole.save(tmp_path / "saved")
    expected = whole.train_iteration()["learners"]
    again = MultiAgentAlgorithm.load(
        tmp_path / "saved",
        kind.in_turns(),
        policies={policy_id: kind.spec() for policy_id in whole.policies},
        device="cpu",
        update_path=kind.update_path,
    )
    assert again.train_iteration()["learners"] == expected
    assert_same(again, whole)


@pytest.mark.parametrize(("kind", "n_steps"), [*zip(LEARNERS.values(), cycle((50, 2)), strict=False)], ids=LEARNERS)
def test_a_policy_that_is_not_trained_keeps_its_weights_and_acts_by_those_that_it_is_given(
    kind: Kind, n_steps: int
) -> None:
    """Its own n_steps do not matter: 50 are more than an iteration, 2 are less."""
    env = kind.scripted(n_envs=2)
    specs = {"a": kind.spec(**{kind.cadence: n_steps}), "b": kind.spec()}
    algorithm = MultiAgentAlgorithm(
        env, specs, policies_to_train=["b"], n_steps=6, seed=3, device="cpu", update_path=kind.update_path
    )
    before = {policy_id: tensors(algorithm, policy_id) for policy_id in algorithm.policies}
    algorithm.train_iteration()
    for policy_id, weights in before.items():
        after = tensors(algorithm, policy_id)
        kept = [np.array_equal(value, after[name]) for name, value in weights.items()]
        assert all(kept) == (policy_id == "a")
    with th.no_grad():
        bias: Any = algorithm.policies["a"].policy.get_submodule(kind.chooses).bias
        values = [-99.0, -99.0, 99.0]
        bias[:3].copy_(th.tensor(values[-len(bias) :]))  # of actions of several parts, those of the choice
    algorithm.train_iteration()
    for received in env.call("received", range(2)):
        taken = [round(np.asarray(actions["a"]).item(), 1) for actions in received if "a" in actions]
        always = 1 if kind.continuous else 2
        assert set(taken[-6:]) == {always}
        assert set(taken[:6]) != {always}


NOT_IN_SB3 = {"stock TRPO"}  # it differentiates with respect to all parameters


@pytest.mark.parametrize("kind", [kind for name, kind in LEARNERS.items() if name not in NOT_IN_SB3])
def test_frozen_parameters_stay_as_they_are_or_are_refused_in_words(kind: Kind) -> None:
    algorithm = make(kind)
    name, parameter = next(iter(algorithm.policies["a"].policy.named_parameters()))
    parameter.requires_grad_(False)
    before = tensors(algorithm, "a")
    try:
        algorithm.train_iteration()
    except ConfigError as error:
        assert kind.update_path == "fused"
        words = "does not cover this policy: frozen parameters; accepted: update_path=auto or torch"
        assert words in str(error)  # noqa: PT017 - some are trained
        return
    after = tensors(algorithm, "a")
    changed = [each for each, value in before.items() if not np.array_equal(value, after[each])]
    assert f"/policy/{name}" in before
    assert f"/policy/{name}" not in changed
    assert changed


def assert_goes_on(build: Callable[[], MultiAgentAlgorithm], saved: Path) -> None:
    """The second iteration is the same from a checkpoint of the first."""
    whole = build()
    whole.train_iteration()
    whole.save(saved)
    whole.train_iteration()
    again = build()
    again.set_state(marl_sb3.extensions.store.checkpoint_folder.find_checkpoint(saved, "latest"))
    again.train_iteration()
    assert_same(again, whole)


@each_on_its_own_path
def test_a_training_with_a_policy_that_is_not_trained_goes_on(kind: Kind, tmp_path: Path) -> None:
    """From the end of rollouts of the one that is trained."""

    def build() -> MultiAgentAlgorithm:
        specs = {"a": kind.spec(**{kind.cadence: 2}), "b": kind.spec()}
        return MultiAgentAlgorithm(kind.in_turns(), specs, policies_to_train=["b"], n_steps=6, seed=3, device="cpu")

    assert_goes_on(build, tmp_path / "saved")


@pytest.mark.parametrize("name", ["PPO, PyTorch", "stock A2C", "stock TRPO", "RecurrentPPO, fused"])
@pytest.mark.parametrize("sde_sample_freq", [-1, 2])
def test_noise_of_gsde_is_brought_back_within_a_rollout(name: str, sde_sample_freq: int, tmp_path: Path) -> None:
    spec = LEARNERS[name].spec(use_sde=True, sde_sample_freq=sde_sample_freq)

    def build() -> MultiAgentAlgorithm:
        return MultiAgentAlgorithm(make_vec_env("Pendulum-v1", n_envs=2), {"p": spec}, n_steps=4, seed=3, device="cpu")

    assert_goes_on(build, tmp_path / "saved")


# --- What is learned from is what was done ---------------------------------------------------------------------------


def numbers(action: Any) -> np.ndarray:
    """The numbers of an action, those of Dicts in the order of their names."""
    parts = [action[key] for key in sorted(action)] if isinstance(action, Mapping) else action
    if parts is action and not isinstance(action, tuple):
        return np.ravel(action).astype(np.float64)
    return np.concatenate([numbers(part) for part in parts])


def as_the_env_got_it(algorithm: Any, stored: np.ndarray) -> Any:
    """The action of the env for one in the buffer of a policy."""
    space = algorithm.action_space
    if hasattr(space, "to_env"):
        return space.to_env(stored)
    if not isinstance(space, spaces.Box):
        return stored + getattr(space, "start", 0)
    return algorithm.policy.unscale_action(stored) if hasattr(algorithm, "replay_buffer") else np.clip(stored, -2, 1)


class Comparison(MultiAgentCallback):
    """Compares what is in the buffers before each update with what the envs have noted; counts the actions."""

    def __init__(self) -> None:
        super().__init__()
        self.compared = 0
        self.metrics: list[Mapping[str, Any]] = []

    def on_iteration_end(self, result: Any) -> bool:
        self.metrics += result["learners"].values()
        return True

    def on_update_start(self, policy_id: str, batch: Any) -> None:
        algorithm: Any = self.algorithm.policies[policy_id]
        did, might = ({**one, **other} for one, other in (self.algorithm.env.call(of, range(2)) for of in NOTED))
        is_rollout = hasattr(batch, "acted")
        held = batch.acted if is_rollout else batch.observations.any(axis=-1)  # of teams, filler besides
        for place in map(tuple, np.argwhere(held)):
            seen = batch.observations[place].tobytes()
            stored = as_the_env_got_it(algorithm, batch.actions[place])
            np.testing.assert_array_equal(numbers(stored), numbers(did[seen]))
            self.compared += 1
            of = seen if is_rollout or not might else batch.next_observations[place].tobytes()
            if of in might:
                mask = batch.action_masks[place] if is_rollout else batch.next_masks[place]
                np.testing.assert_array_equal(mask > 0, might[of])
        if is_rollout:
            _assert_same_probabilities(algorithm.policy, next(deepcopy(batch).get(None)))


def _assert_same_probabilities(policy: Any, batch: Any) -> None:
    """The actions have the probabilities that they were chosen with, in the states of memories that are kept."""
    actions = batch.actions.long().flatten() if isinstance(policy.action_space, spaces.Discrete) else batch.actions
    memory = [batch.lstm_states, batch.episode_starts] if hasattr(batch, "lstm_states") else []
    masks = {"action_masks": batch.action_masks} if hasattr(batch, "action_masks") else {}
    with th.no_grad():
        _, log_probs, _ = policy.evaluate_actions(batch.observations, actions, *memory, **masks)
    held = batch.mask.bool() if memory else slice(None)
    th.testing.assert_close(log_probs[held], batch.old_log_prob.flatten()[held])


def _combinations() -> Iterator[Any]:
    """Every learner with all of its kinds of actions and all layouts, in no more trainings than there are of either."""
    for name, kind in ON_ITS_OWN_PATH.items():
        has_central = kind.cadence == "n_steps" or name.startswith(("SAC", "TD3", "DDPG"))
        layouts = ["shared", "per agent", *["central critic"] * has_central]
        number = max(len(layouts), len(kind.acts_in))
        pairs = zip(cycle(kind.acts_in), cycle(layouts), strict=False)
        yield from ((name, *pair) for pair in islice(pairs, number))


@pytest.mark.parametrize(("name", "actions", "layout"), [*_combinations()])
def test_what_is_learned_from_is_what_was_done(name: str, actions: str, layout: str) -> None:
    """In the first pass over a fresh rollout, the policy is the one that acted."""
    kind = LEARNERS[name]
    waits = layout == "per agent" or kind.algorithm not in (marl_sb3.VDN, marl_sb3.QMIX)  # a team acts at once
    env = make_vec_env(Telling, n_envs=2, action_space=ACTIONS[actions], masked=kind.masked, waits=waits)
    clips = "clip_range" in kind.spec().values
    more: dict[str, Any] = {"n_steps": 6} if kind.cadence == "n_steps" else {}
    more |= {"batch_size": 64} if clips else {}
    more |= {"central_critic": True, "central_critic_net": [4]} if layout == "central critic" else {}
    specs = {policy_id: kind.spec(**more) for policy_id in LAYOUTS[layout]}
    path = kind.update_path.replace("fused", "auto")  # which does not cover all of them
    algorithm, comparison = make(kind, env=env, specs=specs, update_path=path), Comparison()
    algorithm.learn(2 * 6 * 2, callback=comparison)
    assert comparison.compared > 10
    for metrics in comparison.metrics if clips else ():
        assert metrics["mean_kl_loss"] == pytest.approx(0, abs=1e-7)
        assert metrics["clip_fraction"] == 0
