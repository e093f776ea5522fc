"""Policies whose critic sees the whole env: what it sees, what follows from its values, and what stays as it was."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from small_trainings import Results, Steps, assert_goes_on_exactly, same_weights
from toy_envs import NoisyEnv, SampledEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, SwappedAssignment, make_vec_env
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.extensions.central.critic import CentralCritic
from marl_sb3.extensions.central.inputs import CentralInputs
from marl_sb3.extensions.central.value_net import ValueNet
from marl_sb3.extensions.remote.sharded_vec_env import make_sharded_vec_env

SMALL: dict[str, Any] = {"n_steps": 6, "learning_rate": 0.01, "policy_kwargs": {"net_arch": [8]}}
MINIBATCHES: dict[str, Any] = {"batch_size": 8, "n_epochs": 2}
CENTRAL: dict[str, Any] = {"central_critic": True, "central_critic_net": [8]}
# Agents end at different times, and b waits in between.
SCRIPT = {"a": (7, "truncated"), "b": (5, "terminated")}
PLANS = [[(SCRIPT, {}, {"b": [1, 3, 4]})]] * 2


def made(algo: str = "ppo", n_shards: int = 0, **settings: Any) -> MultiAgentAlgorithm:
    make: Any = partial(make_sharded_vec_env, n_shards=n_shards) if n_shards else make_vec_env
    env = make(NoisyEnv, n_envs=2, seed=0, plans=PLANS, masked="maskable" in algo)
    minibatches = {} if "a2c" in algo else MINIBATCHES
    if "trpo" in algo:
        minibatches = {"batch_size": 8}
    spec = PolicySpec(algo, **SMALL, **minibatches, **CENTRAL, **settings)
    return MultiAgentAlgorithm(env, {"shared": spec}, n_steps=4, seed=0, device="cpu")


def critic_of(algorithm: MultiAgentAlgorithm, policy_id: str = "shared") -> CentralCritic:
    (part,) = algorithm.parts.learners[policy_id].parts
    assert isinstance(part, CentralCritic)
    return part


# --- What it sees ----------------------------------------------------------------------------------------------------


class Seen(ScriptedEnv):
    """Agent `a` sees a bit, `b` sees nothing, and both are paid the bit after the last of three steps."""

    def __init__(self, truncates: bool = False) -> None:
        super().__init__(dict.fromkeys("ab", (3, "truncated" if truncates else "terminated")))

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3) if agent == "a" else spaces.Box(0, 1, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def observation(self, agent: str) -> Any:
        return self.bit + 1 if agent == "a" else np.array([0.25, 0.75], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.bit = int(np.random.default_rng(seed).integers(2))
        return super().reset(seed, options)

    def _reward(self, agent: str) -> float:
        return float(self.bit) * (self.step_count == 3)

    def state(self) -> Any:
        return np.array([self.bit, self.step_count], np.float32)


def rows_of(algorithm: MultiAgentAlgorithm, policy_id: str) -> Any:
    return algorithm.parts.learners[policy_id].rows


def test_it_sees_the_observations_of_all_agents_and_for_whom_it_estimates() -> None:
    env = make_vec_env(Seen, n_envs=2, seed=0)
    algorithm = MultiAgentAlgorithm(env, "per_agent", seed=0)
    step = env.reset()
    bits = [int(env.envs[index].unwrapped.bit) for index in range(2)]
    seen = CentralInputs(env, rows_of(algorithm, "b")).of_rows(step)
    order = [group.agents[0] for group in env.groups]
    for bit, row in zip(bits, seen, strict=True):
        by_agent = {"a": [float(number == bit + 1) for number in range(3)], "b": [0.25, 0.75]}
        assert row.tolist() == [*by_agent[order[0]], *by_agent[order[1]], 1.0, 1.0]


def test_it_sees_the_state_where_the_envs_show_it_and_the_last_one_of_agents_that_are_truncated() -> None:
    env = make_vec_env(lambda: Seen(truncates=True), n_envs=2, seed=0, env_state=True)
    algorithm = MultiAgentAlgorithm(env, "per_agent", seed=0)
    inputs = CentralInputs(env, rows_of(algorithm, "a"))
    step = env.reset()
    bits = [int(env.envs[index].unwrapped.bit) for index in range(2)]
    for number in range(3):
        assert inputs.of_rows(step).tolist() == [[bit, number] for bit in bits]
        step = env.step([np.zeros((2, 1), np.int64)] * 2)
    assert inputs.of_final(step, np.ones(2, np.bool_)).tolist() == [[bit, 3] for bit in bits]
    assert inputs.of_rows(step)[:, 1].tolist() == [0, 0]


def test_without_a_state_it_sees_the_final_observations_of_those_that_have_ended() -> None:
    env = make_vec_env(lambda: Seen(truncates=True), n_envs=2, seed=0)
    algorithm = MultiAgentAlgorithm(env, "per_agent", seed=0)
    inputs, step = CentralInputs(env, rows_of(algorithm, "a")), env.reset()
    first = inputs.of_rows(step)
    for _ in range(3):
        step = env.step([np.zeros((2, 1), np.int64)] * 2)
    assert inputs.of_final(step, np.ones(2, np.bool_)).tolist() == first.tolist()  # what they show does not change
    assert inputs.of_final(step, np.array([False, True])).tolist() == first[1:].tolist()


def test_it_sees_observations_of_several_parts_one_after_the_other() -> None:
    box = spaces.Box(-5, 5, (2,), np.float32)
    parts = spaces.Dict({"place": spaces.Discrete(4), "vector": box})
    script = {"a": (2, "truncated"), "b": (2, "truncated")}
    env = make_vec_env(SampledEnv, n_envs=2, observation_space=parts, action_space=spaces.Discrete(3), script=script)
    algorithm = MultiAgentAlgorithm(env, {"shared": PolicySpec("ppo", "MultiInputPolicy")}, seed=0)
    inputs, step = CentralInputs(env, rows_of(algorithm, "shared")), env.reset()

    def expected(shown: Any) -> list[float]:
        of_agents = [[*np.eye(4)[shown[agent]["place"]], *shown[agent]["vector"]] for agent in "ab"]
        return [*of_agents[0], *of_agents[1], 1, 1, 1, 0]

    first = inputs.of_rows(step)
    for _ in range(2):
        step = env.step([np.zeros((2, 2), np.int64)])
    for index, shown in enumerate(env.call("shown", range(2))):
        np.testing.assert_allclose(first[2 * index], expected(shown[0]))
        np.testing.assert_allclose(inputs.of_final(step, np.ones(4, np.bool_))[2 * index], expected(shown[2]))


# --- What follows ----------------------------------------------------------------------------------------------------


class AtUpdates(marl_sb3.MultiAgentCallback):
    """Keeps what the critic thinks of the transitions of each rollout, and the values in it."""

    def _on_training_start(self) -> None:
        self.found: list[tuple[Any, Any]] = []

    def on_update_start(self, policy_id: str, batch: Any) -> None:
        algorithm: Any = self.model
        buffer = algorithm.parts.learners[policy_id].buffer
        acted = buffer.acted.copy()
        acted[0] = False  # transitions that began in the rollout before have values of then
        self.found.append((critic_of(algorithm, policy_id).values(buffer.central[acted]), buffer.values[acted].copy()))


@pytest.mark.parametrize("n_shards", [0, 2])
def test_its_values_are_those_of_the_rollout(n_shards: int) -> None:
    look = AtUpdates()
    made(n_shards=n_shards).learn(24, callback=look)
    assert len(look.found) > 1
    for values, kept in look.found:
        np.testing.assert_allclose(values, kept, atol=1e-5)
        assert np.ptp(kept) > 0


class Worked(marl_sb3.MultiAgentCallback):
    """Works out the advantages of the first rollout from the steps, by the definition of GAE."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.watched, self.found = steps, list[tuple[float, float]]()

    def on_update_start(self, policy_id: str, batch: Any) -> None:
        algorithm: Any = self.model
        self.steps = [*pairwise(self.watched.steps)]
        self.value = lambda *seen: float(critic_of(algorithm, policy_id).values(np.array([seen], np.float32))[0])
        for env, column in np.ndindex(2, 2) if not self.found else ():
            advantage = 0.0
            for first, (before, _) in reversed([*enumerate(self.steps)]):
                if before.to_act[env, column] and (of_turn := self.turn(env, column, first)) is not None:
                    paid, after, ended = of_turn
                    delta = paid + 0.9 * after - self.value(*self.seen(before, env, column))
                    advantage = delta + (0 if ended else 0.9 * 0.8 * advantage)
                    self.found.append((advantage, float(batch.advantages[first, 2 * env + column])))

    def seen(self, step: VecStep, env: int, column: int, final: bool = False) -> list[float]:
        there = (step.to_act[env] & ~(final and step.episode_done[env])).astype(float)
        shown: Any = np.array(step.observations[0][env])  # type: ignore[index]
        for agent in (0, 1) if final else ():
            if step.truncated[env, agent] and not step.terminated[env, agent]:
                shown[agent], there[agent] = step.final_observations[env, agent], 1
        return [*(shown * there[:, None]).reshape(-1), *there, *np.eye(2)[column]]

    def turn(self, env: int, column: int, first: int) -> tuple[float, float, bool] | None:
        """What an agent is paid until its next turn or its end, what follows, and whether it has ended."""
        paid = 0.0
        for _, step in self.steps[first:]:
            paid += float(step.rewards[env, column])
            terminated, truncated = step.terminated[env, column], step.truncated[env, column]
            if terminated or truncated:
                return paid, 0.0 if terminated else self.value(*self.seen(step, env, column, final=True)), True
            if step.to_act[env, column]:
                return paid, self.value(*self.seen(step, env, column)), False
        return None  # the turn goes on into the next rollout


def test_advantages_are_those_that_follow_from_its_values_by_hand() -> None:
    env = make_vec_env(NoisyEnv, n_envs=2, seed=0, plans=PLANS)
    spec = PolicySpec(**{**SMALL, **MINIBATCHES, **CENTRAL, "n_steps": 20}, gamma=0.9, gae_lambda=0.8)
    algorithm = MultiAgentAlgorithm(env, {"shared": spec}, seed=0, device="cpu")
    steps = Steps()
    algorithm.add_watcher(steps)
    worked = Worked(steps)
    algorithm.learn(40, callback=worked)
    expected, found = np.array(worked.found).T
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert len(found) > 50


@pytest.mark.parametrize(("algo", "env_state"), [("ppo", False), ("ppo", True), ("a2c", False)])
def test_it_knows_what_only_the_other_agent_sees(algo: str, env_state: bool) -> None:
    """The return of `b` depends on what `a` sees: a critic of its own explains nothing of it."""

    def explained(**central: Any) -> float:
        env = make_vec_env(Seen, n_envs=16, seed=0, env_state=env_state)
        common = {"n_steps": 15, "gamma": 1.0, "policy_kwargs": {"net_arch": [16]}, **central}
        of_ppo = {"batch_size": 60, "n_epochs": 10, "learning_rate": 0.01}
        more = of_ppo if algo == "ppo" else {"learning_rate": 0.03}
        specs = {agent: PolicySpec(algo, **common, **more) for agent in "ab"}
        results = Results()
        iterations = 12 if algo == "ppo" else 25
        MultiAgentAlgorithm(env, specs, n_steps=15, seed=0, device="cpu").learn(16 * 15 * iterations, callback=results)
        return float(results.kept[-1]["learners"]["b"]["vf_explained_var"])

    assert explained(central_critic=True) > 0.9
    assert explained() < 0.3


def net(popart: bool = True) -> tuple[ValueNet, list[th.nn.Linear]]:
    th.manual_seed(0)
    layers = [th.nn.Linear(4, 6), th.nn.Linear(6, 1)]
    return ValueNet(layers, popart), layers


def test_popart_changes_units_and_not_values() -> None:
    own, inputs = net()[0], np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    own.take_in(inputs, np.array([1.0, 3.0], np.float32))
    assert [float(number) for number in own.of_returns.of_numbers()] == pytest.approx([2.0, 1.0])
    before = own.values(inputs)
    own.take_in(inputs, np.array([100.0, 300.0], np.float32))
    assert own.of_returns.of_numbers()[0] > 5
    np.testing.assert_allclose(own.values(inputs), before, rtol=1e-4)


def test_it_learns_as_pytorch_does() -> None:
    own, layers = net(popart=False)
    rng = np.random.default_rng(1)
    inputs, returns = (rng.normal(size=shape).astype(np.float32) * 8 for shape in ((30, 4), 30))
    own.take_in(inputs, returns)
    same = th.nn.Sequential(layers[0], th.nn.ReLU(), layers[1])
    optimizer = th.optim.Adam(same.parameters(), lr=0.05, eps=1e-5)
    losses, minibatches = [], [np.arange(first, first + 10) for first in (0, 10, 20)] * 4
    for chosen in minibatches:
        found = same(th.from_numpy(own.units.of(inputs[chosen])))[:, 0]
        loss = th.nn.functional.huber_loss(found, th.from_numpy(returns[chosen]), delta=10.0)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        th.nn.utils.clip_grad_norm_(same.parameters(), 10.0)
        optimizer.step()
        losses.append(loss.item())
    assert own.learn(inputs, returns, minibatches, 0.05) == pytest.approx(np.mean(losses), rel=1e-4)
    expected = same(th.from_numpy(own.units.of(inputs)))[:, 0].detach().numpy()
    np.testing.assert_allclose(own.values(inputs), expected, rtol=1e-3, atol=1e-4)


def test_actors_stay_as_they_were(tmp_path: Path) -> None:
    algorithm = made().learn(24)
    plain = MultiAgentAlgorithm(algorithm.env, "shared", **SMALL)
    own, other = (set(each.policies["shared"].policy.state_dict()) for each in (algorithm, plain))
    assert own == other
    # SB3 goes on with such a zip as with any other one: the value network learns.
    assert algorithm.policies["shared"].vf_coef == plain.policies["shared"].vf_coef > 0
    algorithm.save(tmp_path / "saved")
    loaded = marl_sb3.load_policies(tmp_path / "saved")
    seen = {"a": algorithm.env.groups[0].observation_space.sample()}
    actions = [each.predict(seen, deterministic=True)["a"] for each in (algorithm, loaded)]
    assert actions[0] == actions[1]


def test_after_an_update_that_failed_the_value_network_has_its_share_of_the_loss_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algorithm = made(n_shards=0)
    policy: Any = algorithm.policies["shared"]
    policy.update_path, share = "torch", policy.vf_coef
    algorithm.parts.learners["shared"].engine = None
    with monkeypatch.context() as failing:
        failing.setattr(policy, "train", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            algorithm.learn(24)
    algorithm.learn(24, reset_num_timesteps=False)
    assert policy.vf_coef == share > 0


@pytest.mark.parametrize(
    "algo",
    ["ppo", "a2c", "maskable_ppo", "maskable_a2c", "recurrent_ppo", "trpo", "maskable_trpo", "maskable_recurrent_ppo"],
)
def test_a_resumed_training_is_the_same_as_one_that_was_not_interrupted(algo: str, tmp_path: Path) -> None:
    assert_goes_on_exactly(lambda: made(algo), tmp_path, 24, 24)


def test_workers_give_the_same_weights() -> None:
    here = made().learn(24)
    env = make_vec_env(NoisyEnv, n_envs=2, seed=0, plans=PLANS, n_workers=2)
    spec = PolicySpec(**SMALL, **MINIBATCHES, **CENTRAL)
    assert same_weights(here, MultiAgentAlgorithm(env, {"shared": spec}, n_steps=4, seed=0, device="cpu").learn(24))
    env.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolicySpec("dqn", central_critic=True), "central_critic is set, and DQN"),
        (lambda: PolicySpec(central_critic_net=[8]), "central_critic_net is .8., but central_critic is not set"),
    ],
)
def test_what_does_not_go_with_it_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MultiAgentAlgorithm(made().env, {"shared": make()})


@pytest.mark.parametrize("n_shards", [0, 3])
def test_policies_may_take_turns(n_shards: int) -> None:
    """Each critic estimates for the rows that its policy plays, also at the end of agents that are truncated."""
    make: Any = partial(make_sharded_vec_env, n_shards=n_shards) if n_shards else make_vec_env
    env = make(NoisyEnv, n_envs=3, seed=0, plans=[[(SCRIPT, {}, {"b": [1, 3, 4]})]] * 3)
    specs = {name: PolicySpec(**SMALL, **MINIBATCHES, **CENTRAL) for name in "xy"}
    mapping = SwappedAssignment({"a": "x", "b": "y"})
    look = AtUpdates()
    MultiAgentAlgorithm(env, specs, policy_mapping_fn=mapping, n_steps=6, seed=0, device="cpu").learn(90, callback=look)
    assert len({len(values) for values, _ in look.found}) > 1
    for values, kept in look.found:
        np.testing.assert_allclose(values, kept, atol=1e-5)
