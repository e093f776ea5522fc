"""IQL: its losses by hand, what ends a return, and that it is better than the data that it learns from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from recordings import episode
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from toy_envs import NoisyEnv

from marl_sb3 import IQL, ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.extensions.data.cloning import Cloning, CloningOptions, OfflineTraining
from marl_sb3.extensions.data.dataset import PolicyData
from marl_sb3.extensions.data.demonstrations import require_episodes
from marl_sb3.extensions.data.iql import advantage_weights, expectile_loss

SEEN = spaces.Box(-1, 1, (3,))
ACTIONS = {"Box": spaces.Box(-2, 2, (2,)), "Discrete": spaces.Discrete(3)}
TAKEN = {"Box": th.tensor([[0.5, -1.0], [0.0, 0.25]]), "Discrete": th.tensor([[2], [0]])}


class Idle(gymnasium.Env):
    """An env of spaces alone, which nobody steps."""

    def __init__(self, kind: str) -> None:
        self.observation_space, self.action_space = SEEN, ACTIONS[kind]


def made(kind: str, network: Mapping[str, Any] | None = None, **settings: Any) -> IQL:
    kwargs = {"net_arch": [4], "log_std_init": -0.5, **(network or {})}
    return IQL("MlpPolicy", Idle(kind), policy_kwargs=kwargs, seed=1, device="cpu", buffer_size=8, **settings)


def batch(kind: str, dones: list[float] | None = None, discounts: Any = None) -> ReplayBufferSamples:
    seen, after = th.tensor([[0.1, 0.2, 0.3], [-0.5, 0.4, 0.0]]), th.tensor([[0.3, 0.3, 0.3], [0.2, 0.9, -0.4]])
    ends = th.tensor([dones or [0.0, 0.0]]).T
    return ReplayBufferSamples(seen, TAKEN[kind], after, ends, th.tensor([[1.0], [-2.0]]), discounts)


# --- Losses ----------------------------------------------------------------------------------------------------------


def test_errors_above_weigh_the_expectile_and_errors_below_the_rest() -> None:
    """Errors 2 and -1 with an expectile of 0.7: (0.7 * 4 + 0.3 * 1) / 2."""
    assert expectile_loss(th.tensor([2.0, -1.0]), 0.7).item() == pytest.approx(1.55)


def test_the_value_that_minimises_the_loss_is_the_expectile_of_the_values() -> None:
    """Values 0 and 1 with an expectile of 0.9: 0.9 (1 - v) = 0.1 v at v = 0.9."""
    value = th.tensor(0.9, requires_grad=True)
    expectile_loss(th.tensor([0.0, 1.0]) - value, 0.9).backward()
    assert value.grad is not None
    assert value.grad.item() == pytest.approx(0, abs=1e-6)


def test_weights_are_exponentials_of_advantages_and_at_most_100() -> None:
    found = advantage_weights(th.tensor([0.0, 1.0, -1.0, 9.0]), 2.0)
    np.testing.assert_allclose(found, [1, np.exp(2), np.exp(-2), 100], rtol=1e-6)


@pytest.mark.parametrize("kind", ACTIONS)
def test_the_critics_regress_on_the_value_of_the_next_observation_but_not_after_an_end(kind: str) -> None:
    algorithm, given = made(kind, gamma=0.5), batch(kind, [0.0, 1.0])
    policy: Any = algorithm.policy
    with th.no_grad():
        targets = [1.0 + 0.5 * policy.value_net(given.next_observations)[0].item(), -2.0]
        features = th.cat([given.observations, given.actions], dim=1) if kind == "Box" else given.observations
        outputs = [network(features) for network in policy.critic.networks]
        if kind == "Discrete":
            outputs = [of_all[[0, 1], [2, 0]] for of_all in outputs]
        expected = sum(((of_critic.flatten().numpy() - targets) ** 2).mean() for of_critic in outputs)
    assert len(outputs) == 2
    assert algorithm.critic_loss(given).item() == pytest.approx(expected, rel=1e-5)


def test_returns_over_several_steps_have_discounts_of_their_own() -> None:
    given = batch("Box", discounts=th.tensor([[0.25], [0.0]]))
    one, other = made("Box", gamma=0.9), made("Box", gamma=0.1)
    assert one.critic_loss(given).item() == other.critic_loss(given).item()


def test_the_policy_clones_weighted_actions_of_a_box_by_a_gaussian_with_a_squashed_mean() -> None:
    algorithm, given = made("Box"), batch("Box")
    with th.no_grad():
        mean = th.tanh(algorithm.policy.actor(given.observations)).numpy()
    errors = (given.actions.numpy() - mean) / np.exp(-0.5)
    log_probs = (-0.5 * errors**2 + 0.5 - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    found = algorithm.actor_loss(given, th.tensor([3.0, 1.0]))
    assert found.item() == pytest.approx(-(3 * log_probs[0] + log_probs[1]) / 2, rel=1e-5)


def test_the_policy_clones_weighted_choices_by_their_logits() -> None:
    algorithm, given = made("Discrete"), batch("Discrete")
    with th.no_grad():
        log_probs = algorithm.policy.actor(given.observations).log_softmax(dim=1)
    expected = -(3 * log_probs[0, 2] + log_probs[1, 0]) / 2
    assert algorithm.actor_loss(given, th.tensor([3.0, 1.0])).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ACTIONS)
def test_a_step_takes_the_lower_critic_of_the_target_and_then_the_value_that_it_has_learned(kind: str) -> None:
    algorithm = made(kind, {"optimizer_class": th.optim.SGD}, learning_rate=0.1, beta=2.0)
    policy, given = algorithm.policy, batch(kind)
    with th.no_grad():
        for parameter in policy.critic_target.parameters():
            parameter.add_(0.3)
        both = policy.q_values(policy.critic_target, given.observations, given.actions)
    lower = th.minimum(both[:, 0], both[:, 1])
    loss = expectile_loss(lower - policy.value_net(given.observations)[:, 0], 0.7)
    gradients = th.autograd.grad(loss, [*policy.value_net.parameters()])
    expected = [old.detach() - 0.1 * new for old, new in zip(policy.value_net.parameters(), gradients, strict=True)]
    recorded = algorithm.learn_from(given)
    for parameter, value in zip(policy.value_net.parameters(), expected, strict=True):
        th.testing.assert_close(parameter.detach(), value)
    with th.no_grad():
        weights = th.exp(2.0 * (lower - policy.value_net(given.observations)[:, 0]))
    assert recorded["value_loss"] == pytest.approx(loss.item())
    assert recorded["advantage_weight"] == pytest.approx(weights.mean().item())


# --- Episodes --------------------------------------------------------------------------------------------------------


def learner_of(**more: Any) -> Any:
    """Two policies, one for each agent of two envs."""
    env = make_vec_env(NoisyEnv, n_envs=2, plans=[[({"a": (4, "terminated"), "b": (4, "terminated")}, {})]] * 2)
    spec = PolicySpec("iql", batch_size=4, buffer_size=40, policy_kwargs={"net_arch": [4]}, **more)
    algorithm = MultiAgentAlgorithm(env, {"a": spec, "b": spec}, device="cpu", seed=1)
    return algorithm.parts.learners["a"], env.groups[0]


def of_agent(space: Any, agent: str, ends: str, reward: float, length: int = 3) -> Any:
    seen = np.zeros((length + 1, *space.shape), space.dtype)
    return episode(seen, np.zeros(length, np.int64), np.full(length, reward), agent=agent, ends=ends)


@pytest.mark.parametrize(("ends", "dones"), [("terminated", {0.0, 1.0}), ("truncated", {0.0})])
def test_a_return_ends_with_a_termination_and_not_with_a_truncation(ends: str, dones: set[float]) -> None:
    learner, group = learner_of()
    OfflineTraining(learner, [of_agent(group.observation_space, "a", ends, 1.0, 2)], CloningOptions())
    assert set(learner.buffer.sample(50).dones[:, 0].tolist()) == dones


def test_transitions_that_fill_no_line_of_the_buffer_are_learned_from_too() -> None:
    """Three of them, where a line has two places: the first one fills the second line up."""
    learner, group = learner_of()
    seen = np.zeros((4, *group.observation_space.shape), np.float32)
    OfflineTraining(learner, [episode(seen, [0, 1, 2], [1.0, 2.0, 3.0], agent="a")], CloningOptions())
    assert sorted(learner.buffer.rewards[: learner.buffer.pos].flatten().tolist()) == [1.0, 1.0, 2.0, 3.0]


def test_each_policy_learns_from_the_transitions_of_its_agents(tmp_path: Path) -> None:
    learner, group = learner_of()
    space = group.observation_space
    episodes = [of_agent(space, "a", "truncated", 1.0), of_agent(space, "b", "truncated", -7.0)]
    data = [PolicyData("shared", space, group.action_space, episodes)]
    training = OfflineTraining(learner, require_episodes(data, learner.rows, tmp_path), CloningOptions())
    assert training.num_episodes == (1, 0)
    assert set(learner.buffer.sample(50).rewards[:, 0].tolist()) == {1.0}


@pytest.mark.parametrize("name", ["learning_rate", "validation"])
def test_options_of_cloning_are_refused(name: str) -> None:
    learner, group = learner_of()
    with pytest.raises(ConfigError, match=rf"{name} is 0\.25, but it is of cloning, and IQL learns .*; accepted: "):
        OfflineTraining(
            learner, [of_agent(group.observation_space, "a", "truncated", 1.0)], CloningOptions(**{name: 0.25})
        )


# --- Better than the data --------------------------------------------------------------------------------------------

CELLS, MOST = 7, 16  # of the chain; steps of an episode


class Chain(gymnasium.Env):
    """A chain of cells that ends at both ends. The right one pays 1, the left one nothing, and each step costs 0.01.

    An action goes right if it is 1, or a positive number.
    """

    observation_space = spaces.Box(0, 1, (CELLS,))

    def __init__(self, kind: str, start: int | None = None) -> None:
        self.action_space = spaces.Discrete(2) if kind == "Discrete" else spaces.Box(-1, 1, (1,))
        self._start = start

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._cell = self._start or int(self.np_random.integers(1, CELLS - 1))
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._cell += 1 if np.asarray(action).item() > 0 else -1
        self._steps += 1
        reward = float(self._cell == CELLS - 1) - 0.01
        return self._seen(), reward, self._cell in (0, CELLS - 1), self._steps == MOST, {}

    def _seen(self) -> np.ndarray:
        return np.eye(CELLS, dtype=np.float32)[self._cell]


def mixed_episodes(kind: str, number: int = 60) -> list[Any]:
    """Episodes of which one half is random, and the other goes left in seven of ten steps."""
    env, rng = Chain(kind), np.random.default_rng(0)
    found = []
    for index in range(number):
        seen, actions, rewards, ended, cut = [env.reset(seed=index)[0]], [], [], False, False
        while not ended and not cut:
            sign = 1 if rng.random() < (0.5, 0.3)[index % 2] else -1
            size = rng.random(1).astype(np.float32)
            actions.append(np.int64(sign > 0) if kind == "Discrete" else sign * size)
            after, reward, ended, cut, _ = env.step(actions[-1])
            seen.append(after)
            rewards.append(reward)
        found.append(episode(np.stack(seen), actions, rewards, ends="terminated" if ended else "truncated"))
    return found


def mean_return(policy: Any, kind: str) -> float:
    """Return the mean return of the likeliest actions, over all cells to begin in."""
    returns = []
    for start in range(1, CELLS - 1):
        env, total, ended, cut = Chain(kind, start), 0.0, False, False
        seen, _ = env.reset()
        while not ended and not cut:
            seen, reward, ended, cut, _ = env.step(policy.predict(seen, deterministic=True)[0])
            total += reward
        returns.append(total)
    return float(np.mean(returns))


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.proof) for seed in (2, 3))])
def test_it_goes_where_few_of_the_data_went_and_a_clone_does_not(kind: str, seed: int) -> None:
    """Right from everywhere returns 0.97. The same network, cloned, goes left."""
    found = {}
    for way in ("iql", "clone"):
        small = {"policy_kwargs": {"net_arch": [32]}, "buffer_size": 1000, "batch_size": 64, "learning_rate": 0.01}
        spec = PolicySpec("iql", gamma=0.95, tau=0.05, beta=10.0, expectile=0.8, **small)
        env = make_vec_env(lambda: Chain(kind), n_envs=1)
        algorithm = MultiAgentAlgorithm(env, {"shared": spec}, seed=seed, device="cpu")
        learner: Any = algorithm.parts.learners["shared"]
        episodes = mixed_episodes(kind)
        job: Any = OfflineTraining(learner, episodes, CloningOptions(epochs=20))
        if way == "clone":
            job = Cloning(learner, episodes, CloningOptions(epochs=20, patience=20, learning_rate=0.01), seed=seed)
        while not job.is_done:
            job.run_epoch()
        job.finish()
        found[way] = mean_return(learner.algorithm, kind)
    assert found["iql"] > 0.9
    assert found["clone"] < 0.5
