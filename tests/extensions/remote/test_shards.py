"""The same seed and the same shards give the same training, whatever processes roll out the shards."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch as th
from fake_pool import FakePool, in_fake_pool
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3 import A2C, DQN
from toy_envs import MovingEnv, NoisyEnv, ScriptedEnv

from marl_sb3 import (
    PPO,
    MaskableDQN,
    MaskablePPO,
    MultiAgentAlgorithm,
    MultiAgentCallback,
    PolicySpec,
    RecurrentDQN,
    make_vec_env,
)
from marl_sb3.core.metrics.episodes import Episode
from marl_sb3.core.processing.processing import RunningStatistics, recent_state
from marl_sb3.core.vec_env.seeding import shard_seed
from marl_sb3.errors import CheckpointError, ConfigError, EnvError, RunnersLostError, VecEnvOrderError
from marl_sb3.extensions.remote import sharded
from marl_sb3.extensions.remote.processes.pool import InProcessPool
from marl_sb3.extensions.remote.shard import ShardHost
from marl_sb3.extensions.remote.shard_experience import add_recent
from marl_sb3.extensions.remote.shard_runners import ShardRunners, balanced
from marl_sb3.extensions.remote.sharded_vec_env import ShardedVecEnv, make_sharded_vec_env
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint

E, SHARDS, STEPS = 4, 2, 8
SMALL: Mapping[str, Any] = {"policy_kwargs": {"net_arch": [4]}, "device": "cpu", "n_steps": STEPS}
PPO_SMALL: Mapping[str, Any] = {"batch_size": 8, "n_epochs": 2}
SCRIPT = {"a": (7, "truncated"), "b": (5, "terminated")}
PLANS = [[(SCRIPT, {}, {"b": [1, 3]})]] * E  # b waits in some steps; episodes end within rollouts
REPLAY: Mapping[str, Any] = {"learning_starts": 20, "batch_size": 4, "buffer_size": 500}
CENTRAL: Mapping[str, Any] = {"central_critic": True, "central_critic_net": [4]}
CONTINUOUS: Mapping[str, Any] = {**REPLAY, **CENTRAL, "policy_kwargs": {"net_arch": [4]}, "train_freq": STEPS}

POLICIES: Mapping[str, Any] = {
    "ppo": {"policies": "shared", **PPO_SMALL},
    "lengths": {"policies": {"a": PolicySpec(PPO, **{**PPO_SMALL, "n_steps": 6}), "b": PolicySpec(A2C, n_steps=4)}},
    "dqn": {
        "policies": {
            "a": PolicySpec(PPO, **PPO_SMALL),
            "b": PolicySpec(DQN, learning_starts=20, batch_size=4, buffer_size=500),
        }
    },
    "normalized_replay": {
        "policies": {
            "shared": PolicySpec(
                DQN,
                normalize_observations=True,
                normalize_rewards=True,
                learning_starts=20,
                batch_size=4,
                buffer_size=500,
            )
        }
    },
    "n_step": {"policies": {"shared": PolicySpec(DQN, n_steps=3, learning_starts=20, batch_size=4, buffer_size=200)}},
    "recurrent replay": {
        "policies": {
            "shared": PolicySpec(
                RecurrentDQN,
                learning_starts=20,
                batch_size=4,
                buffer_size=200,
                policy_kwargs={"lstm_hidden_size": 4, "net_arch": [4]},
            )
        }
    },
    "normalized": {
        "policies": {"shared": PolicySpec(PPO, normalize_observations=True, normalize_rewards=True, **PPO_SMALL)}
    },
    "lstm": {
        "policies": {
            "a": PolicySpec(
                RecurrentPPO,
                "MlpLstmPolicy",
                **{**PPO_SMALL, "policy_kwargs": {"lstm_hidden_size": 4, "net_arch": [4]}},
            ),
            "b": PolicySpec(PPO, **PPO_SMALL),
        }
    },
    "central critic": {
        "policies": {
            "a": PolicySpec(PPO, **{**PPO_SMALL, **CENTRAL, "n_steps": 6}),
            "b": PolicySpec(A2C, **CENTRAL, n_steps=4),
        }
    },
    "central critic of a memory": {
        "policies": {
            "shared": PolicySpec(
                "maskable_recurrent_ppo",
                **{**PPO_SMALL, **CENTRAL, "policy_kwargs": {"lstm_hidden_size": 4, "net_arch": [4]}},
            )
        }
    },
    "central critics of actions": {
        "policies": {
            "a": PolicySpec("sac", normalize_observations=True, **CONTINUOUS),
            "b": PolicySpec("td3", action_noise={"normal": 0.1}, **CONTINUOUS),
        }
    },
    "qmix": {
        "policies": {
            "shared": PolicySpec(
                "qmix",
                mixing_embed_dim=3,
                hypernet_embed=4,
                tau=0.5,
                target_update_interval=8,
                train_freq=STEPS,
                **REPLAY,
            )
        }
    },
}
# The envs of a kind, where they are not those with `PLANS`.
ENVS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    "central critic of a memory": (NoisyEnv, {"plans": PLANS, "masked": True, "env_state": True}),
    "central critics of actions": (MovingEnv, {"plans": PLANS}),
    "qmix": (NoisyEnv, {"plans": [[(SCRIPT, {"b": 1})]] * E, "env_state": True}),
}
each_kind = pytest.mark.parametrize("kind", POLICIES)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MultiAgentAlgorithm]:
    """Makes an algorithm whose shards these runners roll out; None: in process."""

    def made(kind: str = "ppo", runners: Any = None, env: Any = NoisyEnv, **env_kwargs: Any) -> MultiAgentAlgorithm:
        monkeypatch.setattr(
            sharded, "shard_runners", lambda *_: runners or ShardRunners(partial(InProcessPool, ShardHost))
        )
        env, settings = (env, env_kwargs) if env_kwargs else ENVS.get(kind, (env, {"plans": PLANS}))
        return MultiAgentAlgorithm(
            make_sharded_vec_env(env, E, SHARDS, seed=1, **settings), seed=3, **{**SMALL, **POLICIES[kind]}
        )

    return made


def digest(algorithm: MultiAgentAlgorithm) -> str:
    """Of all weights and optimizer states, and of the results that hold no times."""
    found = hashlib.sha256()
    for learner in algorithm.parts.learners.values():
        for kind, arrays in sorted(learner.get_tensors().items()):
            for name, array in sorted(arrays.items()):
                found.update(f"{kind}{name}".encode() + array.tobytes())
    episodes = [(e.env_index, e.length, *e.agent_returns.values()) for e in algorithm.tracker.episodes]
    found.update(repr(episodes).encode())
    return found.hexdigest()


def trained(algorithm: MultiAgentAlgorithm, iterations: int = 4) -> str:
    algorithm.learn(iterations * STEPS * E)
    algorithm.env.close()
    return digest(algorithm)


PARTS = spaces.Dict({"choice": spaces.Discrete(3), "force": spaces.Box(-1, 1, (1,))})


class OfParts(NoisyEnv):
    """The same with actions of a choice and a force, of which it sees the digits."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return PARTS

    def step(self, actions: Mapping[str, Any]) -> Any:
        return super().step({a: int(own["choice"] + 3 * round(1 + own["force"][0])) for a, own in actions.items()})


def dying(period: int) -> Callable[[int, str], bool]:
    """Every `period`-th piece of work ends its runner."""
    calls = iter(range(1, 10**6))
    return lambda runner, method: method == "work" and next(calls) % period == 0


@each_kind
def test_runners_that_die_change_nothing(kind: str, make: Callable[..., MultiAgentAlgorithm]) -> None:
    undisturbed = trained(make(kind))
    pool = FakePool(dies=dying(3))
    assert trained(make(kind, in_fake_pool(pool, 2))) == undisturbed
    assert len(pool.ended) > 3  # the two at the end, and those that died


def test_actions_of_several_parts_come_from_shards(make: Callable[..., MultiAgentAlgorithm]) -> None:
    undisturbed = trained(make("ppo", env=OfParts))
    assert trained(make("ppo", in_fake_pool(FakePool(dies=dying(3)), 2), env=OfParts)) == undisturbed


class Counted(NoisyEnv):
    """Knows how many of its kind are open."""

    running: ClassVar[int] = 0

    def __init__(self, **settings: Any) -> None:
        Counted.running += 1
        super().__init__(**settings)

    def close(self) -> None:
        Counted.running -= 1


def test_a_shard_that_comes_back_to_a_runner_is_restored_and_none_has_envs_of_another(
    make: Callable[..., MultiAgentAlgorithm],
) -> None:
    """Those beside the first runner die in their second rounds, so that it gets their shard every other round."""
    undisturbed = trained(make(), iterations=6)
    pool = FakePool(dies=lambda runner, method: runner > 0 and pool.sent.count((runner, "work")) > 1)
    Counted.running = 0
    algorithm = make("ppo", in_fake_pool(pool, 2), Counted, plans=PLANS)
    for iteration in range(5):
        algorithm.learn(STEPS * E, reset_num_timesteps=iteration == 0)
        assert Counted.running == E
    algorithm.learn(STEPS * E, reset_num_timesteps=False)
    assert digest(algorithm) == undisturbed
    assert len(pool.ended) > 2


@each_kind
def test_resume_with_other_runners_is_exact(
    kind: str, make: Callable[..., MultiAgentAlgorithm], tmp_path: Path
) -> None:
    whole = make(kind, in_fake_pool(FakePool(), 1))
    whole.learn(2 * STEPS * E)
    whole.save(tmp_path / "saved")
    whole.learn(2 * STEPS * E, reset_num_timesteps=False)
    resumed = make(kind)
    assert resumed.set_state(read_checkpoint(tmp_path / "saved")) == {}
    resumed.learn(2 * STEPS * E, reset_num_timesteps=False)
    assert digest(resumed) == digest(whole)


def seed_rounds(algorithm: MultiAgentAlgorithm) -> None:
    """Seed all that is drawn in a training as its first shard does in each round."""
    runner: Any = algorithm.parts.runner
    collect, rounds = runner.collect, count(1)
    for policy in algorithm.policies.values():  # a shard has spaces of its own, which it seeds
        policy.action_space = copy.deepcopy(policy.action_space)

    def seeded(env_steps: int, listener: Any) -> bool:
        np.random.seed(next(rounds))  # noqa: NPY002
        if not isinstance(algorithm.env, ShardedVecEnv):  # which seed themselves
            of_round = np.random.SeedSequence(int(np.random.randint(2**31)), spawn_key=(0,))  # noqa: NPY002
            of_policies, of_torch, of_numpy, _ = of_round.generate_state(4).tolist()
            for number, policy in enumerate(algorithm.policies.values()):
                policy.action_space.seed((of_policies + number) % 2**32)
            th.default_generator.manual_seed(of_torch)
            np.random.seed(of_numpy)  # noqa: NPY002
        return bool(collect(env_steps, listener))

    runner.collect = seeded


class SeedUpdates(MultiAgentCallback):
    """Seeds what updates draw."""

    def on_update_start(self, policy_id: str, batch: Any) -> None:
        np.random.seed(0)  # noqa: NPY002
        th.manual_seed(0)


@pytest.mark.parametrize("kind", ["ppo", "lengths", *[kind for kind in POLICIES if "central" in kind], "qmix"])
def test_one_shard_learns_what_a_training_without_shards_does(kind: str) -> None:
    """To the bit, if both draw the same random numbers: also values, ends, states and what other agents do."""
    env, settings = ENVS.get(kind, (NoisyEnv, {"plans": PLANS}))
    envs = make_sharded_vec_env(env, 2, 1, **settings), make_vec_env(env, 2, **settings)
    digests = []
    for each, seed in zip(envs, [3, shard_seed(3, 0)], strict=True):
        algorithm = MultiAgentAlgorithm(each, seed=3, **{**SMALL, **POLICIES[kind]})
        each.seed(seed)
        seed_rounds(algorithm)
        first = digest(algorithm)
        algorithm.learn(6 * STEPS * 2, callback=SeedUpdates())
        digests.append((first, digest(algorithm)))
    assert digests[0] == digests[1]
    assert digests[0][0] != digests[0][1]


def test_the_global_generators_and_other_shards_do_not_matter(make: Callable[..., MultiAgentAlgorithm]) -> None:
    """A shard draws from its own streams: what it experiences in the first round depends on nothing else."""
    two, four = (
        MultiAgentAlgorithm(
            make_sharded_vec_env(NoisyEnv, n, n // 2, seed=1, plans=PLANS * 2), seed=3, **{**SMALL, **PPO_SMALL}
        )
        for n in (4, 8)
    )
    for algorithm in (two, four):
        np.random.seed(5)  # noqa: NPY002 - the seed of the round
        algorithm.parts.runner.begin_rollouts()
        algorithm.parts.runner.collect(STEPS, Counts())
    rows = 2 * 4
    ours, theirs = (a.policies["shared"].rollout_buffer for a in (two, four))
    np.testing.assert_array_equal(ours.observations, theirs.observations[:, :rows])
    np.testing.assert_array_equal(ours.actions, theirs.actions[:, :rows])
    assert (theirs.actions[:, :4] != theirs.actions[:, 4:8]).any()


class Counts:
    """A listener that stops the rollout after some steps."""

    def __init__(self, most: int = 10**6) -> None:
        self.steps: list[Any] = []
        self.most = most

    def on_step(self, step: Any, episodes: list[Episode]) -> bool:
        self.steps.append(step)
        return len(self.steps) < self.most


class Watches(MultiAgentCallback):
    """Keeps what callbacks are told of steps and episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.rewards: list[Any] = []
        self.infos: list[Any] = []
        self.episodes: list[Episode] = []

    def _on_step(self) -> bool:
        self.rewards.append(self.locals["rewards"])
        self.infos.append(self.locals["infos"][3])
        return True

    def on_episode_end(self, episode: Episode) -> None:
        self.episodes.append(episode)


def test_callbacks_hear_of_every_step_of_every_env(make: Callable[..., MultiAgentAlgorithm]) -> None:
    watches = Watches()
    algorithm = make(env=ScriptedEnv, script=None)
    algorithm.learn(STEPS * E, callback=watches)
    np.testing.assert_array_equal(np.array(watches.rewards), np.tile([1.0, 2.0], (STEPS, E, 1)))
    assert watches.infos[1]["a"] == {"step": 2}
    assert [episode.env_index for episode in watches.episodes] == [0, 1, 2, 3] * 2  # episodes of 3 steps
    assert algorithm.num_timesteps == STEPS * E
    with pytest.raises(VecEnvOrderError, match="the observations of a step stay with its shard"):
        watches.locals["step"].observations[0]


class Rollouts(MultiAgentCallback):
    def _on_training_start(self) -> None:
        self.begun = self.over = 0

    def _on_rollout_start(self) -> None:
        self.begun += 1

    def _on_rollout_end(self) -> None:
        self.over += 1


@pytest.mark.parametrize("kind", ["ppo", "normalized_replay"])
def test_callbacks_hear_when_each_round_begins_and_is_over(kind: str, make: Callable[..., MultiAgentAlgorithm]) -> None:
    rollouts = Rollouts()
    make(kind).learn(3 * STEPS * E, callback=rollouts)
    assert (rollouts.begun, rollouts.over) == (3, 3)


def test_rows_of_all_shards_stand_side_by_side(make: Callable[..., MultiAgentAlgorithm]) -> None:
    algorithm = make(env=IndexedEnv, script=None)
    algorithm.train_iteration()
    seen = algorithm.policies["shared"].rollout_buffer.observations[0, :, 0]
    np.testing.assert_array_equal(seen.reshape(E, 2), [[e, e] for e in range(E)])


class IndexedEnv(ScriptedEnv):
    """Agents see the index of their env."""

    def __init__(self, env_index: int, **settings: Any) -> None:
        super().__init__(env_index=env_index, **settings)

    def observation(self, agent: str) -> np.ndarray:
        return np.array([self.env_index, 0, 0], dtype=np.float32)


class Curriculum(IndexedEnv):
    def configure(self, bonus: float) -> None:
        self.bonus = bonus

    def _reward(self, agent: str) -> float:
        return getattr(self, "bonus", 0.0)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_calls_and_settings_reach_the_envs(number: int, make: Callable[..., MultiAgentAlgorithm]) -> None:
    pool = FakePool(dies=dying(5))
    algorithm = make(runners=in_fake_pool(pool, number) if number else None, env=Curriculum, script=None)
    algorithm.env.configure([1, 2], bonus=3.0)
    watches = Watches()
    algorithm.learn(2 * STEPS * E, callback=watches)
    np.testing.assert_array_equal(np.array(watches.rewards)[-1], [[0, 0], [3, 3], [3, 3], [0, 0]])
    assert algorithm.env.call("get_wrapper_attr", [3, 0], "env_index") == [3, 0]
    with pytest.raises(AttributeError, match="shard 1"):
        algorithm.env.call("not_there", [3])


def test_a_callback_that_stops_ends_the_round(make: Callable[..., MultiAgentAlgorithm]) -> None:
    algorithm = make()
    algorithm.parts.runner.begin_rollouts()
    assert not algorithm.parts.runner.collect(STEPS, Counts(most=2))


# --- Supervision -----------------------------------------------------------------------------------------------------


class Breaks(ScriptedEnv):
    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        if self.env_index == 3 and self.step_count == 2:
            raise ZeroDivisionError("of the env")
        return super().step(actions)


@pytest.mark.parametrize("number", [0, 2])
def test_an_exception_of_an_env_names_the_shard(number: int, make: Callable[..., MultiAgentAlgorithm]) -> None:
    algorithm = make(runners=in_fake_pool(FakePool(), number) if number else None, env=Breaks, script=None)
    with pytest.raises(
        EnvError, match=r"shard 1 \(envs 2 to 3, .*env 1, episode 0, step 3.*ZeroDivisionError"
    ) as found:
        algorithm.train_iteration()
    assert "line" in str(found.value.__cause__)  # the traceback


def test_a_shard_that_ends_every_runner_ends_the_training(make: Callable[..., MultiAgentAlgorithm]) -> None:
    worked: list[int] = []

    def dies(runner: int, method: str) -> bool:
        worked.append(runner)
        return method == "work" and len(worked) > 4

    algorithm = make(runners=in_fake_pool(FakePool(dies), 2))
    with pytest.raises(RunnersLostError, match=r"5 runners have ended in one round while in shard \d \(envs "):
        algorithm.train_iteration()


@pytest.mark.parametrize("kind", ["ppo", "normalized_replay", "lstm"])
def test_a_training_whose_runners_were_lost_is_resumed_exactly(
    kind: str, make: Callable[..., MultiAgentAlgorithm], tmp_path: Path
) -> None:
    undisturbed = trained(make(kind))
    algorithm = make(
        kind, in_fake_pool(FakePool(dies=lambda runner, method: algorithm.iteration > 0), 2, start_timeout_s=0.2)
    )
    with pytest.raises(RunnersLostError):
        algorithm.learn(4 * STEPS * E)
    assert (algorithm.iteration, algorithm.between_iterations) == (1, True)
    algorithm.save(tmp_path / "saved")
    resumed = make(kind)
    assert resumed.set_state(read_checkpoint(tmp_path / "saved")) == {}
    resumed.learn(3 * STEPS * E, reset_num_timesteps=False)
    assert digest(resumed) == undisturbed


def test_a_silent_runner_is_replaced(make: Callable[..., MultiAgentAlgorithm]) -> None:
    undisturbed = trained(make())
    pool = FakePool(hangs=lambda runner, method: runner == 0 and pool.sent.count((0, "work")) > 1)
    assert trained(make(runners=in_fake_pool(pool, 2, round_timeout_s=0.2))) == undisturbed
    assert 0 in pool.ended


def test_it_goes_on_with_the_runners_that_are_left(make: Callable[..., MultiAgentAlgorithm]) -> None:
    """Those that would replace a dead one get no resources."""
    undisturbed = trained(make())
    pool = FakePool(
        dies=lambda runner, method: runner == 0 and pool.sent.count((0, "work")) > 1, starts=lambda r: r < 2
    )
    runners = in_fake_pool(pool, 2)
    algorithm = make(runners=runners)
    algorithm.train_iteration()
    assert algorithm.train_iteration()["fault_tolerance"] == {"num_healthy_workers": 1, "num_worker_restarts": 0}
    assert trained(make(runners=in_fake_pool(FakePool(), 1))) == undisturbed


def test_without_a_runner_starts_are_tried_again(make: Callable[..., MultiAgentAlgorithm]) -> None:
    """All nodes have gone, and a new one comes."""
    undisturbed = trained(make())
    pool = FakePool(lambda runner, method: runner < 7 and pool.sent.count((1, "work")) > 1)
    assert trained(make(runners=in_fake_pool(pool, 2))) == undisturbed
    assert set(range(7)) < set(pool.ended)


def test_after_failed_starts_the_next_round_tries_again(make: Callable[..., MultiAgentAlgorithm]) -> None:
    def dies(runner: int, method: str) -> bool:
        if method == "versions":
            return runner in (2, 3, 4)  # those that would replace the first
        return runner == 0 and pool.sent.count((0, "work")) > 1

    pool = FakePool(dies)
    algorithm = make(runners=in_fake_pool(pool, 2))
    healthy = [algorithm.train_iteration()["fault_tolerance"]["num_healthy_workers"] for _ in range(4)]
    assert (healthy[0], healthy[-1]) == (1, 2)
    assert 5 not in pool.ended


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (FakePool(starts=lambda runner: runner == 0), "1 of 2 runners have started within 0.1 s"),
        (FakePool(their_versions=lambda runner: {"numpy": "1.0"}), "it has numpy 1.0 instead of"),
        (FakePool(dies=lambda runner, method: True), "a runner cannot start: it died"),
    ],
)
def test_runners_that_cannot_start_are_refused(
    pool: FakePool, message: str, make: Callable[..., MultiAgentAlgorithm]
) -> None:
    algorithm = make(runners=in_fake_pool(pool, 2, start_timeout_s=0.1))
    with pytest.raises(ConfigError, match=message):
        algorithm.start_runners()
    assert pool.closed
    assert set(pool.ended) == {0, 1}


def test_more_runners_than_shards_are_refused(make: Callable[..., MultiAgentAlgorithm]) -> None:
    with pytest.raises(ConfigError, match="runners is 3, more than the 2 shards"):
        make(runners=in_fake_pool(FakePool(), 3)).start_runners()


@pytest.mark.parametrize(
    ("n_shards", "more", "message"),
    [
        (3, {}, "n_shards is 3, which does not divide n_envs 4; accepted: 1, 2, 4"),
        (2, {"n_workers": 1}, "n_workers is 1, but envs in shards have no workers"),
    ],
)
def test_shards_that_are_refused(n_shards: int, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sharded_vec_env("arena", 4, n_shards, **more)


class OneAtATime(ScriptedEnv):
    """As a simulator of which a process can run only one."""

    running: ClassVar[int] = 0

    def __init__(self, **settings: Any) -> None:
        if OneAtATime.running:
            raise RuntimeError("the simulator runs")
        OneAtATime.running += 1
        super().__init__(**settings)

    def close(self) -> None:
        OneAtATime.running -= 1


def test_an_env_of_which_a_process_makes_only_one_is_refused(make: Callable[..., MultiAgentAlgorithm]) -> None:
    algorithm = make(env=OneAtATime, script=None)
    with pytest.raises(ConfigError, match=r"shard 0 .*env 1: .*the simulator runs.*as many shards and runners as envs"):
        algorithm.start_runners()


def test_a_checkpoint_of_other_shards_is_refused(make: Callable[..., MultiAgentAlgorithm], tmp_path: Path) -> None:
    algorithm = make()
    algorithm.train_iteration()
    algorithm.save(tmp_path / "saved")
    other = make_sharded_vec_env(NoisyEnv, E, 4, plans=PLANS)
    with pytest.raises(CheckpointError, match="n_shards is 2; accepted: 4"):
        MultiAgentAlgorithm.load(tmp_path / "saved", other)


def test_a_shard_takes_what_critics_see_as_wide_as_the_file_has_it(
    make: Callable[..., MultiAgentAlgorithm], tmp_path: Path
) -> None:
    make("central critic").learn(2 * STEPS * E).save(tmp_path / "saved")
    checkpoint: Any = read_checkpoint(tmp_path / "saved")
    critic = checkpoint.state["env"]["shards"][1]["policies"]["a"]["parts"]["central_critic"]
    for wrong in (10**12, np.zeros(3, np.float32)):
        critic["like"] = wrong
        with pytest.raises(CheckpointError, match="shard 1/policies/a/"):
            make("central critic").set_state(checkpoint)


@pytest.mark.parametrize("kind", ["ppo", "central critics of actions", "qmix"])
def test_a_training_without_shards_goes_on_in_shards_with_another_number_of_envs(
    kind: str, make: Callable[..., MultiAgentAlgorithm], tmp_path: Path
) -> None:
    env, settings = ENVS.get(kind, (NoisyEnv, {"plans": PLANS}))
    before = MultiAgentAlgorithm(make_vec_env(env, 2, **settings), seed=3, **{**SMALL, **POLICIES[kind]})
    before.learn(2 * STEPS * 2).save(tmp_path / "saved")
    loaded = MultiAgentAlgorithm.load(tmp_path / "saved", make(kind).env)
    assert set(loaded.policies) == set(before.policies)
    loaded.learn(STEPS * E, reset_num_timesteps=False)
    assert loaded.num_timesteps == 2 * STEPS * 2 + STEPS * E


def test_envs_in_shards_cannot_be_stepped_here() -> None:
    env = make_sharded_vec_env("arena", 4, 2, seed=0)
    assert isinstance(env, ShardedVecEnv)
    with pytest.raises(VecEnvOrderError, match="runners step"):
        env.reset()
    with pytest.raises(VecEnvOrderError, match="make a MultiAgentAlgorithm"):
        env.call("render", [0])


# --- Parts -----------------------------------------------------------------------------------------------------------


def test_balanced_keeps_shards_where_they_are() -> None:
    assert balanced(range(5), [0, 1], {}) == {0: [0, 1, 2], 1: [3, 4]}
    assert balanced(range(4), [0, 1, 2], {0: 0, 1: 0, 2: 1, 3: 1}) == {0: [0, 1], 1: [2], 2: [3]}
    assert balanced(range(2), [7, 8, 9], {0: 9}) == {7: [0], 8: [1], 9: []}


def test_statistics_of_parts_add_up_to_those_of_the_whole() -> None:
    whole, ours = RunningStatistics(shape=(2,)), RunningStatistics(shape=(2,))
    data = np.random.default_rng(0).normal(3, 2, (30, 2))
    whole.update(data)
    for part in (data[:10], data[10:12], data[:0], data[12:]):
        elsewhere = RunningStatistics(shape=(2,))
        elsewhere.begin_recent()
        if len(part):
            elsewhere.update(part)
        add_recent({"x": ours}, recent_state({"x": elsewhere}))
    np.testing.assert_allclose(ours.mean, whole.mean)
    np.testing.assert_allclose(ours.var, whole.var)
    assert ours.count == pytest.approx(whole.count)


# --- Masks -----------------------------------------------------------------------------------------------------------


def test_masks_of_next_observations_come_with_the_transitions_of_shards(
    make: Callable[..., MultiAgentAlgorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = PolicySpec(MaskableDQN, learning_starts=20, batch_size=4, buffer_size=200)
    monkeypatch.setitem(POLICIES, "masks", {"policies": {"shared": spec}})  # type: ignore[misc]
    algorithm = make("masks", env=ScriptedEnv, masked=True, script={"a": (7, "truncated"), "b": (7, "terminated")})
    trained(algorithm)
    buffer: Any = algorithm.policies["shared"].replay_buffer
    places = slice(None, buffer.pos)
    step, over = buffer.next_observations[places, ..., 2], buffer.dones[places] > 0
    expected = (np.arange(3) != step[..., None] % 2) | over[..., None]
    np.testing.assert_array_equal(buffer.next_masks[places], expected)
    assert over.any()
    assert not over.all()


# --- Warnings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [False, True], ids=["alone", "shards"])
def test_a_policy_that_does_not_use_the_masks_of_the_env_is_named_once(
    sharded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    specs = {"a": PolicySpec(MaskablePPO), "b": PolicySpec(PPO)}
    make = partial(make_sharded_vec_env, n_shards=2) if sharded else make_vec_env
    env = make(ScriptedEnv, n_envs=2, masked=True)
    algorithm = MultiAgentAlgorithm(env, specs, n_steps=8, batch_size=8, n_epochs=1, device="cpu")
    for _ in range(2):
        algorithm.forget_episodes()
        algorithm.train_iteration()
    (warning,) = [record.getMessage() for record in caplog.records if "masks" in record.getMessage()]
    assert warning.startswith("policy b does not use the action masks of the env, and may choose forbidden actions; ")
    assert {"maskable_ppo", "maskable_a2c", "maskable_recurrent_ppo", "maskable_dqn"} <= {
        *warning.partition("; ")[2].removesuffix(" never do").split(", ")
    }


def test_several_policies_that_do_not_use_the_masks_are_named_together(caplog: pytest.LogCaptureFixture) -> None:
    specs = dict.fromkeys("ab", PolicySpec(PPO))
    env = make_vec_env(ScriptedEnv, n_envs=2, masked=True)
    MultiAgentAlgorithm(env, specs, n_steps=8, batch_size=8, n_epochs=1, device="cpu").train_iteration()
    (warning,) = [record.getMessage() for record in caplog.records if "masks" in record.getMessage()]
    assert warning.startswith("policies a, b do not use the action masks of the env")
