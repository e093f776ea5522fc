"""MaskableRecurrentPPO: with all actions allowed it is RecurrentPPO; masks stay with the steps of their sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from toy_envs import CHOICES, Forbidding, NoisyEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.acting.policy import PolicyInputs
from marl_sb3.extensions.fast.contrib import RecurrentRolloutPolicy
from marl_sb3.extensions.fast.masked_on_policy import MaskableMemoryPolicy
from marl_sb3.wrappers.observations import choices_of

NETWORK: dict[str, Any] = {"net_arch": [4], "lstm_hidden_size": 3, "n_lstm_layers": 2}
SMALL: dict[str, Any] = {"n_steps": 5, "batch_size": 7, "n_epochs": 2, "learning_rate": 0.02, "ent_coef": 0.1}


def trained(algo: str, space: str, path: str, allows_all: bool = False, iterations: int = 3, **network: Any) -> Any:
    env = make_vec_env(lambda: Forbidding(CHOICES[space], allows_all), n_envs=2, seed=1)
    spec = PolicySpec(algo, **SMALL, policy_kwargs={**NETWORK, **network})
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, seed=3, device="cpu", update_path=path)
    before = {name: value.clone() for name, value in algorithm.policies["p"].policy.state_dict().items()}
    for _ in range(iterations):
        algorithm.train_iteration()
    return algorithm.policies["p"], before, env


CASES = [(space, path, "lstm") for space in CHOICES for path in ("torch", "fused")] + [("Discrete", "fused", "gru")]


@pytest.mark.parametrize(("space", "path", "cell"), CASES)
def test_with_all_actions_allowed_it_is_recurrent_ppo_to_the_bit(space: str, path: str, cell: str) -> None:
    ours, *_ = trained("maskable_recurrent_ppo", space, path, allows_all=True, cell=cell)
    plain, *_ = trained("recurrent_ppo", space, path, allows_all=True, cell=cell)
    expected, found = (each.policy.state_dict() for each in (plain, ours))
    assert expected.keys() == found.keys()
    assert not [name for name, value in expected.items() if not th.equal(found[name], value)]


@pytest.mark.parametrize(("space", "path", "cell"), CASES)
def test_what_is_forbidden_is_never_taken_and_learns_nothing(space: str, path: str, cell: str) -> None:
    algorithm, before, env = trained("maskable_recurrent_ppo", space, path, cell=cell)
    taken = [action for received in env.call("received", range(2)) for each in received for action in each.values()]
    last = np.array([np.ravel(action)[-1] for action in taken])
    assert len(last) > 2 * 5
    assert last.max() < (choices_of(CHOICES[space]) or ())[-1] - 1
    after = algorithm.policy.state_dict()
    for name in ("action_net.weight", "action_net.bias"):
        assert th.equal(after[name][-1], before[name][-1])
        assert not th.equal(after[name][:-1], before[name][:-1])
    masks = np.ones((6, sum(choices_of(CHOICES[space]) or ())), bool)
    masks[:, -1] = False
    seen = np.zeros((6, 3), np.float32)
    for deterministic in (True, False):
        actions, state = algorithm.predict(seen, deterministic=deterministic, action_masks=masks)
        actions, _ = algorithm.predict(seen, state, np.zeros(6, bool), deterministic, action_masks=masks)
        assert np.ravel(actions.reshape(6, -1)[:, -1]).max() < (choices_of(CHOICES[space]) or ())[-1] - 1


@pytest.mark.parametrize("whole", [False, True])
def test_masks_stay_with_the_steps_of_their_sequences(whole: bool) -> None:
    """Agents wait and end at other times, and masks alternate; the weights are still those that have acted."""
    script = {"a": (7, "truncated"), "b": (7, "terminated"), "c": (3, "truncated")}
    plans = [[(script, {}, {"b": [1, 3, 4, 6], "c": [1]})]] * 2
    env = make_vec_env(NoisyEnv, n_envs=2, seed=1, plans=plans, masked=True)
    spec = PolicySpec("maskable_recurrent_ppo", **SMALL, policy_kwargs=NETWORK)
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, seed=3, device="cpu")
    policy: Any = algorithm.policies["p"]
    seen: set[Any] = set()
    checked: list[int] = []

    def check() -> None:
        policy.rollout_buffer.whole_sequences = whole
        for batch in policy.rollout_buffer.get(7):
            mask, actions = batch.mask > 0, batch.actions.long().flatten()
            given = (batch.observations, actions, batch.lstm_states, batch.episode_starts)
            with th.no_grad():
                found = policy.policy.evaluate_actions(*given, action_masks=batch.action_masks)[1]
            th.testing.assert_close(found[mask], batch.old_log_prob[mask], atol=1e-5, rtol=1e-4)
            checked.append(int(mask.sum()))
            seen.update(map(tuple, batch.action_masks[mask].tolist()))

    policy.train = check
    for _ in range(4):
        algorithm.train_iteration()
    assert sum(checked) > 2 * 2 * 12
    assert seen == {(0, 1, 1), (1, 0, 1)}


def test_kernels_act_as_pytorch_does() -> None:
    algorithm, *_ = trained("maskable_recurrent_ppo", "MultiDiscrete", "fused", iterations=0)
    by_kernels, by_torch = (RecurrentRolloutPolicy(algorithm) for _ in range(2))
    assert by_kernels.kernels is not None
    by_torch.kernels = None
    rng, states = np.random.default_rng(0), by_kernels.initial_states(6)
    for step in range(4):
        masks = rng.random((6, 5)) < 0.5
        masks[:, [1, 3]] = True
        inputs = PolicyInputs(rng.normal(size=(6, 3)).astype(np.float32), rng.random(6) < 0.3, masks, states)
        decisions = []
        for each in (by_kernels, by_torch):
            th.manual_seed(step)
            actions, after, *more = each.act(inputs)
            decisions.append((actions, *after, *more))
        for found, expected in zip(*decisions, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        states = after


class Cue(gymnasium.Env):
    """One of two cues at first; two steps later the answer that names it is paid 1, and a third one, forbidden, 2."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._cue, self._steps = int(self.np_random.integers(2)), 0
        return self._see(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        is_answer = self._steps == 2
        self._steps += 1
        paid = 2.0 if action == 2 else float(action == self._cue)
        return self._see(), paid * is_answer, is_answer, False, {}

    def action_masks(self) -> np.ndarray:
        return np.array([True, True, self._steps != 2])

    def _see(self) -> np.ndarray:
        cues = [self._steps == 0 and self._cue == each for each in range(2)]
        return np.array([*cues, self._steps == 2], np.float32)


def test_it_remembers_what_to_choose_among_allowed_actions() -> None:
    """Without memory, half of the answers are right."""
    spec = PolicySpec("maskable_recurrent_ppo", n_steps=48, batch_size=128, n_epochs=4, learning_rate=0.01,
                      policy_kwargs={"cell": "gru", "lstm_hidden_size": 16, "net_arch": []})  # fmt: skip
    algorithm = MultiAgentAlgorithm(make_vec_env(Cue, n_envs=8, seed=0), {"p": spec}, seed=0, device="cpu")
    for _ in range(6):
        returns = algorithm.train_iteration()["env_runners"]["episode_return_mean"]
    assert 0.9 < returns <= 1.0


class Counting:
    """A class behind the policy's own, whose methods are called."""

    def forward(self, *arguments: Any, **settings: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(*arguments, **settings)  # type: ignore[misc]


class Counted(MaskableMemoryPolicy, Counting, RecurrentActorCriticPolicy):
    """A policy of a user's."""


def test_masks_may_be_the_last_argument_and_base_classes_of_a_subclass_are_called() -> None:
    env = make_vec_env(lambda: Forbidding(CHOICES["Discrete"], False), n_envs=2, seed=1)
    spec = PolicySpec("maskable_recurrent_ppo", policy=Counted, **SMALL, policy_kwargs=NETWORK)
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, seed=3, device="cpu")
    algorithm.train_iteration()
    policy: Any = algorithm.policies["p"].policy
    assert policy.calls > 0
    seen, masks = np.full((1, 3), 0.5, np.float32), [[False, False, False, True]]
    actions, _ = policy.predict(seen, None, np.ones(1, dtype=bool), True, masks)
    assert actions == [3]


def test_its_distributions_know_masks_and_state_and_its_files_keep_all_of_it(tmp_path: Path) -> None:
    env = make_vec_env(lambda: Forbidding(CHOICES["Discrete"], False), n_envs=2, seed=1)
    spec = PolicySpec("maskable_recurrent_ppo", **SMALL, policy_kwargs={**NETWORK, "cell": "gru"})
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, seed=3, device="cpu")
    algorithm.train_iteration()
    seen = {agent: np.full(3, 0.5, np.float32) for agent in "ab"}
    masks = {"a": [True, True, False, False], "b": [False, False, True, True]}
    _, state = algorithm.predict_with_state(seen, action_masks=masks)
    for given in (None, state):
        probabilities = algorithm.distribution(seen, given, action_masks=masks)
        for agent, own in probabilities.items():
            chances = own.distribution.probs.numpy().reshape(-1)
            assert (chances > 0).tolist() == masks[agent]
    ours = algorithm.policies["p"]
    ours.save(tmp_path / "saved.zip")
    loaded = marl_sb3.MaskableRecurrentPPO.load(tmp_path / "saved.zip", device="cpu")
    expected, found = (each.policy.state_dict() for each in (ours, loaded))
    assert all(th.equal(found[name], value) for name, value in expected.items())


def test_what_it_cannot_do_is_refused_in_words() -> None:
    algorithm, _, _ = trained("maskable_recurrent_ppo", "Discrete", "torch", iterations=0)
    with pytest.raises(
        ConfigError, match=r"MaskableRecurrentPPO.learn\(\) is SB3's loop, which stores no action masks"
    ):
        algorithm.learn(8)
    spec = PolicySpec("maskable_recurrent_ppo", **SMALL, policy_kwargs=NETWORK)
    without_masks = MultiAgentAlgorithm("arena", {"p": spec}, device="cpu")
    with pytest.raises(ConfigError, match="action masks missing for MaskableRecurrentPPO: the env gives none for"):
        without_masks.train_iteration()
