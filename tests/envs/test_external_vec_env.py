"""Envs that clients step: the same training as in process, each env at its own pace, and clients that go away."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clients import Simulator, agents_of, answered, external
from small_trainings import same_weights
from stable_baselines3.common.callbacks import BaseCallback
from stock_training import counts_of
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, PolicySpec, evaluate_policies, make_vec_env
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.envs.external import StepReport, space_of
from marl_sb3.envs.external_vec_env import EpisodeRefusedError
from marl_sb3.errors import ConfigError

WAITING = {
    "script": {"a": (6, "truncated"), "b": (4, "terminated")},
    "skips": {"a": [2, 3], "b": [1]},
    "joins": {"b": 1},
}
FAST = {"net_arch": [8]}


@pytest.mark.parametrize(
    ("algo", "make", "more"),
    [
        ("ppo", ArenaEnv, {"n_steps": 32}),
        ("ppo", lambda **_: ScriptedEnv(**WAITING), {"n_steps": 16}),
        ("maskable_ppo", lambda **_: ScriptedEnv(masked=True), {"n_steps": 16}),
        ("recurrent_ppo", lambda **_: ScriptedEnv(**WAITING), {"n_steps": 16, "central_critic": True}),
        ("dqn", lambda **_: ScriptedEnv(**WAITING), {"learning_starts": 8, "train_freq": 2, "buffer_size": 100}),
    ],
)
def test_one_client_trains_the_same_weights_as_the_env_in_process(algo: str, make: Any, more: dict[str, Any]) -> None:
    def trained(env: Any) -> MultiAgentAlgorithm:
        spec = PolicySpec(algo, policy_kwargs=FAST, **more)
        algorithm = MultiAgentAlgorithm(env, policies={"p": spec}, seed=1)
        algorithm.learn(96)
        env.close()
        return algorithm

    inside = trained(make_vec_env(make, 1, seed=1, vectorizer="sync"))
    outside_env = external(make())
    Simulator(make(), outside_env).start()
    outside = trained(outside_env)
    assert outside.num_timesteps == inside.num_timesteps
    returns = [[episode.agent_returns for episode in own.tracker.episodes] for own in (outside, inside)]
    assert returns[0] == returns[1]
    assert same_weights(outside, inside)


class Rollouts(BaseCallback):
    """Keeps what policies learn from."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        (learner,) = self.model.parts.learners.values()
        recorded = learner.experience.recorded()
        if recorded is not None:
            self.kept.append({name: np.array(array) for name, array in recorded.items()})


def test_clients_of_different_speed_fill_rows_of_their_own() -> None:
    paid = {"a": [10.0, 11.0, 12.0, 13.0, 14.0]}
    script: Any = {"script": {"a": (5, "truncated")}, "rewards": paid}
    vec_env = external(ScriptedEnv(**script), 3)
    pauses = (0.0, 0.001, 0.004)
    simulators = [Simulator(ScriptedEnv(**script), vec_env, lambda _, s=s: time.sleep(s)) for s in pauses]
    for simulator in simulators:
        simulator.start()
    spec = PolicySpec("ppo", n_steps=8, batch_size=8, n_epochs=1, policy_kwargs=FAST, gamma=1.0, gae_lambda=1.0)
    algorithm = MultiAgentAlgorithm(vec_env, policies={"p": spec}, seed=1)
    rollouts = Rollouts()
    algorithm.learn(200, callback=rollouts)
    vec_env.close()
    counts = np.array([kept["acted"].sum(axis=0) for kept in rollouts.kept])
    assert counts.max() == 8  # a rollout is over when one of its rows is full
    assert (counts.min(axis=1) < 8).any()  # the slow client's is not
    for kept in rollouts.kept:
        steps, acted = kept["observations"][..., 2], kept["acted"]
        rewards = kept["rewards"] - np.where(steps == 4, kept["rewards"] - 14.0, 0)  # at the end, a value is added
        assert np.array_equal(rewards[acted], 10.0 + steps[acted])
        assert np.array_equal(kept["episode_starts"][acted] > 0, steps[acted] == 0)
        for row in range(3):  # one env step follows the other, whatever rollout it is in
            own = steps[acted[:, row], row]
            assert (np.diff(own) % 5 == 1).all()
            middle = np.flatnonzero(acted[:-1, row] & acted[1:, row] & (steps[:-1, row] < 4))
            returns = kept["returns"][:, row]
            assert np.allclose(returns[middle], 10 + steps[middle, row] + returns[middle + 1], atol=1e-3)
    assert algorithm.num_timesteps == pytest.approx(sum(simulator.steps for simulator in simulators), abs=3)


def test_an_off_policy_algorithm_updates_once_for_as_many_env_steps_as_there_are_envs() -> None:
    spec = PolicySpec("dqn", learning_starts=0, buffer_size=1000, train_freq=1, gradient_steps=1, policy_kwargs=FAST)
    vec_env = external(ScriptedEnv(), 4)
    Simulator(ScriptedEnv(), vec_env).start()  # one client alone
    algorithm = MultiAgentAlgorithm(vec_env, policies={"p": spec}, seed=1)
    algorithm.learn(100)
    vec_env.close()
    (learner,) = algorithm.parts.learners.values()
    assert counts_of(learner.algorithm)[1] == pytest.approx(algorithm.num_timesteps / 4, abs=1)


def test_the_episode_of_a_client_that_goes_away_is_given_up_and_nothing_else() -> None:
    script: Any = {"script": {"a": (100, "truncated")}}

    def leave(steps: int) -> None:
        if steps == 3:
            raise InterruptedError

    vec_env = external(ScriptedEnv(**script), 2, episode_timeout_s=0.2)
    Simulator(ScriptedEnv(**script), vec_env, leave).start()
    staying = Simulator(ScriptedEnv({"a": (5, "truncated")}), vec_env, lambda _: time.sleep(0.002))
    staying.start()
    spec = PolicySpec("ppo", n_steps=200, batch_size=50, n_epochs=1, policy_kwargs=FAST)
    algorithm = MultiAgentAlgorithm(vec_env, policies={"p": spec}, seed=1)
    rollouts = Rollouts()
    algorithm.learn(150, callback=rollouts)
    vec_env.close()
    lengths = {episode.length for episode in algorithm.tracker.episodes}
    assert lengths == {5}
    assert not staying.errors
    # All but its last action, which has no outcome, and those that go on into the next rollout.
    assert rollouts.kept[0]["acted"].sum() == pytest.approx(staying.steps + 3, abs=2)


def test_reports_that_break_the_rules_are_refused_and_the_training_goes_on() -> None:
    vec_env = external(ScriptedEnv(), 2)
    good = Simulator(ScriptedEnv(), vec_env)
    seen = {agent: np.zeros(3, np.float32) for agent in ("a", "b")}

    class Misbehave(BaseCallback):
        refused: list[str] = []  # noqa: RUF012
        done = False

        def _on_step(self) -> bool:
            return not self.done

    def misbehave(callback: Misbehave) -> None:
        wrong = [
            [StepReport({"a": np.zeros(2, np.float32)})],
            [StepReport()],
            [StepReport(seen), StepReport(seen, {"a": float("nan")})],
            [StepReport(seen), StepReport(seen, number=7)],
            [StepReport(seen), StepReport({}, {})],
        ]
        for reports in wrong:
            episode_id, _ = vec_env.open_episode()
            try:
                for report in reports:
                    answer = answered(vec_env, episode_id, report)
                    if answer.error is not None:
                        raise answer.error
            except EpisodeRefusedError as error:
                callback.refused.append(str(error))
                vec_env.give_up(episode_id, "it was refused")
            time.sleep(0.05)
        callback.done = True

    import threading

    callback = Misbehave()
    good.start()
    threading.Thread(target=misbehave, args=(callback,), daemon=True).start()
    spec = PolicySpec("ppo", n_steps=16, policy_kwargs=FAST)
    algorithm = MultiAgentAlgorithm(vec_env, policies={"p": spec}, seed=1)
    algorithm.learn(10**6, callback=callback)
    vec_env.close()
    shape, nobody, nan, number, neither = callback.refused
    assert "has shape (2,), its space says (3,)" in shape
    assert "agent 'a'" in shape
    assert "no agent is live after reset()" in nobody
    assert "reward is nan" in nan
    assert number == "report 7 follows report 1"
    assert "no agent is left to act" in neither
    assert not good.errors
    assert {episode.length for episode in algorithm.tracker.episodes} == {3}


def test_all_slots_may_be_taken_and_a_restored_training_goes_on_with_new_episodes(tmp_path: Path) -> None:
    vec_env = external(ScriptedEnv())
    Simulator(ScriptedEnv(), vec_env).start()
    spec = PolicySpec("ppo", n_steps=7, batch_size=7, policy_kwargs=FAST)
    first = MultiAgentAlgorithm(vec_env, policies={"p": spec}, seed=1)
    first.learn(14)
    first.save(tmp_path / "saved")
    vec_env.close()
    vec_env = external(ScriptedEnv())
    second = MultiAgentAlgorithm.load(tmp_path / "saved", vec_env)
    episode_id, seed = vec_env.open_episode()
    with pytest.raises(EpisodeRefusedError, match="all 1 episodes are taken") as refused:
        vec_env.open_episode()
    assert refused.value.reason == "full"
    with pytest.raises(EpisodeRefusedError, match="there is no episode 'x', or no longer"):
        vec_env.report("x", StepReport(), print)
    vec_env.give_up(episode_id, "it was a test")
    Simulator(ScriptedEnv(), vec_env).start()
    second.learn(14, reset_num_timesteps=False)
    vec_env.close()
    assert second.num_timesteps == 28
    assert seed != 0
    assert second.iteration == 4


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_client_may_choose_the_actions_itself(algo: str) -> None:
    vec_env = external(ScriptedEnv({"a": (4, "truncated")}))

    class Chooses(Simulator):
        def _play(self, episode_id: str, observations: Any, infos: Any) -> None:
            over, rest, seen = False, [{}, {}, {}, infos], dict(observations)
            while not over:
                report = StepReport(seen, *rest, actions={"a": np.int64(2)}, log_probs={"a": -0.5})
                answer = answered(self.vec_env, episode_id, report)
                if answer.error is not None:
                    raise answer.error
                over = answer.over
                if not over:
                    assert answer.actions == {"a": 2}
                    seen, *rest = self.env.step({"a": 2})

    more: Any = {"n_steps": 8} if algo == "ppo" else {"buffer_size": 100, "learning_starts": 100}
    Chooses(ScriptedEnv({"a": (4, "truncated")}), vec_env).start()
    algorithm = MultiAgentAlgorithm(vec_env, policies={"p": PolicySpec(algo, policy_kwargs=FAST, **more)}, seed=1)
    rollouts = Rollouts()
    algorithm.learn(16, callback=rollouts if algo == "ppo" else None)
    vec_env.close()
    (learner,) = algorithm.parts.learners.values()
    if algo == "ppo":
        kept = rollouts.kept[0]
        assert (kept["actions"] == 2).all()
        assert (kept["log_probs"] == -0.5).all()
        assert kept["values"].any()
    else:
        buffer: Any = learner.buffer  # type: ignore[attr-defined]
        assert buffer.num_transitions > 0
        assert (buffer.actions[: buffer.num_transitions] == 2).all()


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        ({"kind": "Ball"}, "a mapping with a kind of Box, Discrete"),
        ({"kind": "Box", "low": 1, "high": 0, "shape": [2]}, "low below high"),
        ({"kind": "Box", "shape": [2], "dtype": "uint8"}, "numbers for uint8"),
        ({"kind": "Box", "size": 2}, "unexpected keyword argument 'size'"),
        ({"kind": "Discrete"}, "missing 1 required positional argument: 'n'"),
        ({"kind": "Dict", "spaces": {"x": 3}}, "where.x is 3"),
        ({"kind": "Discrete", "n": -1}, "describes no space"),
        ({"kind": ["Box"]}, "accepted: a mapping with a kind of Box"),
    ],
)
def test_spaces_that_are_none_are_refused(plain: Any, words: str) -> None:
    with pytest.raises(ConfigError, match="where") as refused:
        space_of(plain, "where")
    assert words in str(refused.value)


def test_spaces_are_read_as_servers_describe_them() -> None:
    described = agents_of(ArenaEnv())["agent1"]
    assert space_of(described["observation_space"], "it") == ArenaEnv().observation_space("agent1")
    nested = {"kind": "Dict", "spaces": {"n": {"kind": "Tuple", "spaces": [{"kind": "MultiBinary", "n": 3}]}}}
    assert str(space_of(nested, "it")) == "Dict('n': Tuple(MultiBinary(3)))"


@pytest.mark.parametrize("argument", [{"n_workers": 2}, {"vectorizer": "batched"}, {"env_state": True}])
def test_settings_of_envs_in_process_are_refused(argument: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="accepted for envs that clients step"):
        make_vec_env("external", 1, agents=agents_of(ScriptedEnv()), **argument)


def test_no_episode_can_be_played_here_in_an_env_of_clients() -> None:
    algorithm = MultiAgentAlgorithm(external(ScriptedEnv()), policies={"p": PolicySpec("ppo")})
    with pytest.raises(ConfigError, match=r"clients step the env, .*; accepted: another env"):
        evaluate_policies(algorithm, external(ScriptedEnv()), n_episodes=1)
