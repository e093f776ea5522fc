"""The same seed and the same shards give the same training, whatever processes roll out the shards."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch as th
from fake_pool import FakePool, dying, in_fake_pool
from sharded_trainings import PLANS, POLICIES, SMALL, STEPS, E, digest, envs_of, made, shared, trained, undisturbed
from toy_envs import NoisyEnv, ScriptedEnv

from marl_sb3 import PPO, MaskableDQN, MaskablePPO, MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, make_vec_env
from marl_sb3.core.metrics.episodes import Episode
from marl_sb3.core.processing.processing import RunningStatistics, recent_state
from marl_sb3.core.vec_env.seeding import shard_seed
from marl_sb3.errors import CheckpointError, ConfigError, EnvError, RunnersLostError, VecEnvOrderError
from marl_sb3.extensions.remote.processes.messages import WorkerTracebackError
from marl_sb3.extensions.remote.shard_experience import add_recent
from marl_sb3.extensions.remote.shard_runners import balanced
from marl_sb3.extensions.remote.sharded_vec_env import ShardedVecEnv, make_sharded_vec_env
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint

each_kind = pytest.mark.parametrize("kind", POLICIES)


@each_kind
def test_runners_that_die_and_others_that_go_on_from_a_checkpoint_change_nothing(kind: str, tmp_path: Path) -> None:
    pool = FakePool(dies=dying(3))
    assert trained(made(kind, in_fake_pool(pool, 2)), halfway=tmp_path / "saved") == undisturbed(kind)
    assert len(pool.ended) > 3  # the two at the end, and those that died
    assert undisturbed(kind).startswith(resumed(kind, tmp_path / "saved", 2))


class Counted(NoisyEnv):
    """Knows how many of its kind are open; no more than `most` can be."""

    running: ClassVar[int] = 0
    most: ClassVar[float] = np.inf

    def __init__(self, **settings: Any) -> None:
        if Counted.running == self.most:
            raise RuntimeError("the simulator runs")
        Counted.running += 1
        super().__init__(**settings)

    def close(self) -> None:
        Counted.running -= 1


class OneAtATime(Counted):
    """As a simulator of which a process can run only one."""

    most = 1


def test_a_shard_that_comes_back_to_a_runner_is_restored_and_none_has_envs_of_another() -> None:
    """Those beside the first runner die in their second rounds, so that it gets their shard every other round."""
    whole = made()
    whole.learn(6 * STEPS * E)
    pool = FakePool(dies=lambda runner, method: runner > 0 and pool.rounds(runner) > 1)
    Counted.running = 0
    algorithm = made("ppo", in_fake_pool(pool, 2), Counted, plans=PLANS)
    for iteration in range(6):
        algorithm.learn(STEPS * E, reset_num_timesteps=iteration == 0)
        assert Counted.running == E
    assert digest(algorithm) == digest(whole)
    assert len(pool.ended) > 2


def test_an_env_of_which_a_process_makes_only_one_is_refused() -> None:
    Counted.running = 0
    with pytest.raises(ConfigError, match=r"shard 0 .*env 1: .*the simulator runs.*as many shards and runners as envs"):
        made(env=OneAtATime, plans=PLANS).start_runners()


def resumed(kind: str, saved: Path, iterations: int) -> str:
    """The digest of a training that goes on from a checkpoint; this process rolls out its shards."""
    algorithm = made(kind)
    assert algorithm.set_state(read_checkpoint(saved)) == {}
    return digest(algorithm.learn(iterations * STEPS * E, reset_num_timesteps=False))


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
    env, settings = envs_of(kind)
    envs = make_sharded_vec_env(env, 2, 1, **settings), make_vec_env(env, 2, **settings)
    digests = []
    for each, seed in zip(envs, [3, shard_seed(3, 0)], strict=True):
        algorithm = MultiAgentAlgorithm(each, POLICIES[kind], seed=3, **SMALL)
        each.seed(seed)
        seed_rounds(algorithm)
        first = digest(algorithm)
        algorithm.learn(6 * STEPS * 2, callback=SeedUpdates())
        digests.append((first, digest(algorithm)))
    assert digests[0] == digests[1]
    assert digests[0][0] != digests[0][1]


@pytest.mark.parametrize("kind", ["ppo", "central critics of actions", "qmix"])
def test_a_training_without_shards_goes_on_in_shards_with_another_number_of_envs(kind: str, tmp_path: Path) -> None:
    env, settings = envs_of(kind)
    before = MultiAgentAlgorithm(make_vec_env(env, 2, **settings), POLICIES[kind], seed=3, **SMALL)
    before.learn(2 * STEPS * 2).save(tmp_path / "saved")
    loaded = MultiAgentAlgorithm.load(tmp_path / "saved", made(kind).env)
    assert set(loaded.policies) == set(before.policies)
    loaded.learn(STEPS * E, reset_num_timesteps=False)
    assert loaded.num_timesteps == 2 * STEPS * 2 + STEPS * E


class Counts:
    """A listener that stops the rollout after some steps."""

    def __init__(self, most: int = 10**6) -> None:
        self.steps, self.most = 0, most

    def on_step(self, step: Any, episodes: list[Episode]) -> bool:
        self.steps += 1
        return self.steps < self.most


def test_the_global_generators_and_other_shards_do_not_matter() -> None:
    """A shard draws from its own streams: what it experiences in the first round depends on nothing else."""
    buffers = []
    for n_envs in (4, 8):
        env = make_sharded_vec_env(NoisyEnv, n_envs, n_envs // 2, seed=1, plans=PLANS * 2)
        algorithm = MultiAgentAlgorithm(env, POLICIES["ppo"], seed=3, **SMALL)
        np.random.seed(5)  # noqa: NPY002 - the seed of the round
        algorithm.parts.runner.begin_rollouts()
        algorithm.parts.runner.collect(STEPS, Counts())
        buffers.append(algorithm.policies["shared"].rollout_buffer)
    ours, theirs = buffers
    rows = 2 * 4
    np.testing.assert_array_equal(ours.observations, theirs.observations[:, :rows])
    np.testing.assert_array_equal(ours.actions, theirs.actions[:, :rows])
    assert (theirs.actions[:, :4] != theirs.actions[:, 4:8]).any()
    noise = theirs.observations[0, :, 1]
    assert (noise[:4] != noise[4:8]).all()  # of the envs, which have seeds of their own


# --- What callbacks and calls see ------------------------------------------------------------------------------------


class Watches(MultiAgentCallback):
    """Keeps what callbacks are told of steps, episodes and rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.rewards: list[Any] = []
        self.infos: list[Any] = []
        self.episodes: list[Episode] = []
        self.begun = self.over = 0

    def _on_rollout_start(self) -> None:
        self.begun += 1

    def _on_step(self) -> bool:
        self.rewards.append(self.locals["rewards"])
        self.infos.append(self.locals["infos"][3])
        return True

    def _on_rollout_end(self) -> None:
        self.over += 1

    def on_episode_end(self, episode: Episode) -> None:
        self.episodes.append(episode)


def test_callbacks_hear_of_every_step_of_every_env() -> None:
    watches = Watches()
    algorithm = made(env=ScriptedEnv)
    algorithm.learn(STEPS * E, callback=watches)
    np.testing.assert_array_equal(np.array(watches.rewards), np.tile([1.0, 2.0], (STEPS, E, 1)))
    assert watches.infos[1]["a"] == {"step": 2}
    assert [episode.env_index for episode in watches.episodes] == [0, 1, 2, 3] * 2  # episodes of 3 steps
    assert algorithm.num_timesteps == STEPS * E
    with pytest.raises(VecEnvOrderError, match="the observations of a step stay with its shard"):
        watches.locals["step"].observations[0]


@pytest.mark.parametrize("kind", ["ppo", "normalized_replay"])
def test_callbacks_hear_when_each_round_begins_and_is_over(kind: str) -> None:
    watches = Watches()
    made(kind).learn(3 * STEPS * E, callback=watches)
    assert (watches.begun, watches.over) == (3, 3)


def test_a_callback_that_stops_ends_the_round() -> None:
    algorithm = made()
    algorithm.parts.runner.begin_rollouts()
    assert not algorithm.parts.runner.collect(STEPS, Counts(most=2))


class Curriculum(ScriptedEnv):
    """Agents see the index of their env, and are paid a bonus that can be set."""

    bonus = 0.0

    def observation(self, agent: str) -> np.ndarray:
        return np.array([self.env_index, 0, 0], dtype=np.float32)

    def configure(self, bonus: float) -> None:
        self.bonus = bonus

    def _reward(self, agent: str) -> float:
        return self.bonus


def test_rows_of_all_shards_stand_side_by_side() -> None:
    algorithm = made(env=Curriculum)
    algorithm.train_iteration()
    seen = algorithm.policies["shared"].rollout_buffer.observations[0, :, 0]
    np.testing.assert_array_equal(seen.reshape(E, 2), [[e, e] for e in range(E)])


@pytest.mark.parametrize(
    "runners",
    [None, *(in_fake_pool(FakePool(dies=dying(5)), number) for number in (1, 2)), 2],
    ids=["this process", "one that dies", "two that die", "processes"],
)
def test_calls_and_settings_reach_the_envs(runners: Any) -> None:
    algorithm, watches = made(runners=runners, env=Curriculum), Watches()
    algorithm.env.configure([1, 2], bonus=3.0)
    algorithm.learn(2 * STEPS * E, callback=watches)
    np.testing.assert_array_equal(watches.rewards[-1], [[0, 0], [3, 3], [3, 3], [0, 0]])
    assert algorithm.env.call("get_wrapper_attr", [3, 0], "env_index") == [3, 0]
    with pytest.raises(AttributeError, match="shard 1"):
        algorithm.env.call("not_there", [3])
    algorithm.env.close()


def test_envs_in_shards_cannot_be_stepped_here() -> None:
    env = make_sharded_vec_env("arena", 4, 2, seed=0)
    assert isinstance(env, ShardedVecEnv)
    with pytest.raises(VecEnvOrderError, match="runners step"):
        env.reset()
    with pytest.raises(VecEnvOrderError, match="make a MultiAgentAlgorithm"):
        env.call("render", [0])


# --- Supervision -----------------------------------------------------------------------------------------------------


class Breaks(ScriptedEnv):
    """The last env raises an exception in its third step."""

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        if self.env_index == E - 1 and self.step_count == 2:
            raise ZeroDivisionError("of the env")
        return super().step(actions)


@pytest.mark.parametrize(
    "runners", [None, in_fake_pool(FakePool(), 2), 2], ids=["this process", "fake ones", "processes"]
)
def test_an_exception_of_an_env_names_shard_env_and_step_and_has_its_traceback(runners: Any) -> None:
    algorithm = made(runners=runners, env=Breaks)
    words = (
        r"shard 1 \(envs 2 to 3, .*env 1, episode 0, step 3, seed \d+: step\(\) raised ZeroDivisionError: of the env"
    )
    with pytest.raises(EnvError, match=words) as found:
        algorithm.train_iteration()
    cause = found.value.__cause__
    assert "line" in str(cause)
    if runners == 2:
        assert isinstance(cause, WorkerTracebackError)
        assert 'raise ZeroDivisionError("of the env")' in str(cause)
    algorithm.env.close()


def test_a_shard_that_ends_every_runner_ends_the_training() -> None:
    worked: list[int] = []

    def dies(runner: int, method: str) -> bool:
        worked.append(runner)
        return method == "work" and len(worked) > 4

    with pytest.raises(RunnersLostError, match=r"5 runners have ended in one round while in shard \d \(envs "):
        made(runners=in_fake_pool(FakePool(dies), 2)).train_iteration()


@pytest.mark.parametrize("kind", ["ppo", "normalized_replay", "lstm"])
def test_a_training_whose_runners_were_lost_is_resumed_exactly(kind: str, tmp_path: Path) -> None:
    whole = digest(made(kind).learn(4 * STEPS * E))
    pool = FakePool(dies=lambda runner, method: algorithm.iteration > 0)
    algorithm = made(kind, in_fake_pool(pool, 2, start_timeout_s=0.2))
    with pytest.raises(RunnersLostError):
        algorithm.learn(4 * STEPS * E)
    assert (algorithm.iteration, algorithm.between_iterations) == (1, True)
    algorithm.save(tmp_path / "saved")
    assert resumed(kind, tmp_path / "saved", 3) == whole


def test_a_silent_runner_is_replaced() -> None:
    pool = FakePool(hangs=lambda runner, method: runner == 0 and pool.rounds(0) > 1)
    assert trained(made(runners=in_fake_pool(pool, 2, round_timeout_s=0.2))) == undisturbed()
    assert 0 in pool.ended


def test_it_goes_on_with_the_runners_that_are_left() -> None:
    """Those that would replace a dead one get no resources."""
    pool = FakePool(dies=lambda runner, method: runner == 0 and pool.rounds(0) > 1, starts=lambda r: r < 2)
    algorithm = made(runners=in_fake_pool(pool, 2))
    algorithm.train_iteration()
    assert algorithm.train_iteration()["fault_tolerance"] == {"num_healthy_workers": 1, "num_worker_restarts": 0}


def test_without_a_runner_starts_are_tried_again() -> None:
    """All nodes have gone, and a new one comes."""
    pool = FakePool(lambda runner, method: runner < 7 and pool.rounds(1) > 1)
    assert trained(made(runners=in_fake_pool(pool, 2))) == undisturbed()
    assert set(range(7)) < set(pool.ended)


def test_after_failed_starts_the_next_round_tries_again() -> None:
    def dies(runner: int, method: str) -> bool:
        if method == "versions":
            return runner in (2, 3, 4)  # those that would replace the first
        return runner == 0 and pool.rounds(0) > 1

    pool = FakePool(dies)
    algorithm = made(runners=in_fake_pool(pool, 2))
    found = [algorithm.train_iteration()["fault_tolerance"] for _ in range(4)]
    assert found[0] == {"num_healthy_workers": 1, "num_worker_restarts": 0}
    assert found[-1] == {"num_healthy_workers": 2, "num_worker_restarts": 1}
    assert 5 not in pool.ended


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (FakePool(starts=lambda runner: runner == 0), "1 of 2 runners have started within 0.1 s"),
        (FakePool(their_versions=lambda runner: {"numpy": "1.0"}), "it has numpy 1.0 instead of"),
        (FakePool(dies=lambda runner, method: True), "a runner cannot start: it died"),
    ],
)
def test_runners_that_cannot_start_are_refused(pool: FakePool, message: str) -> None:
    algorithm = made(runners=in_fake_pool(pool, 2, start_timeout_s=0.1))
    with pytest.raises(ConfigError, match=message):
        algorithm.start_runners()
    assert pool.closed
    assert set(pool.ended) == {0, 1}


# --- Checkpoints that do not fit -------------------------------------------------------------------------------------


def test_a_checkpoint_of_other_shards_is_refused(tmp_path: Path) -> None:
    made().learn(STEPS * E).save(tmp_path / "saved")
    other = make_sharded_vec_env(NoisyEnv, E, 4, plans=PLANS)
    with pytest.raises(CheckpointError, match="n_shards is 2; accepted: 4"):
        MultiAgentAlgorithm.load(tmp_path / "saved", other)


def test_a_shard_takes_what_critics_see_as_wide_as_the_file_has_it(tmp_path: Path) -> None:
    made("central critic").learn(2 * STEPS * E).save(tmp_path / "saved")
    checkpoint: Any = read_checkpoint(tmp_path / "saved")
    critic = checkpoint.state["env"]["shards"][1]["policies"]["a"]["parts"]["central_critic"]
    for wrong in (10**12, np.zeros(3, np.float32)):
        critic["like"] = wrong
        with pytest.raises(CheckpointError, match="shard 1/policies/a/"):
            made("central critic").set_state(checkpoint)


# --- Parts -----------------------------------------------------------------------------------------------------------


def test_balanced_keeps_shards_where_they_are() -> None:
    assert balanced(range(5), [0, 1], {}) == {0: [0, 1, 2], 1: [3, 4]}
    assert balanced(range(4), [0, 1, 2], {0: 0, 1: 0, 2: 1, 3: 1}) == {0: [0, 1], 1: [2], 2: [3]}
    assert balanced(range(4), [0, 1], {0: 1, 1: 1, 2: 0, 3: 0}) == {0: [2, 3], 1: [0, 1]}
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


def test_masks_of_next_observations_come_with_the_transitions_of_shards() -> None:
    ends = {"a": (7, "truncated"), "b": (7, "terminated")}
    env = make_sharded_vec_env(ScriptedEnv, E, 2, seed=1, masked=True, script=ends)
    specs = shared(MaskableDQN, learning_starts=20, batch_size=4, buffer_size=200)
    algorithm = MultiAgentAlgorithm(env, specs, seed=3, **SMALL).learn(4 * STEPS * E)
    buffer: Any = algorithm.policies["shared"].replay_buffer
    places = slice(None, buffer.pos)
    step, over = buffer.next_observations[places, ..., 2], buffer.dones[places] > 0
    expected = (np.arange(3) != step[..., None] % 2) | over[..., None]
    np.testing.assert_array_equal(buffer.next_masks[places], expected)
    assert over.any()
    assert not over.all()


@pytest.mark.parametrize(
    ("make", "of_a", "words"),
    [
        (make_vec_env, MaskablePPO, "policy b does not use"),
        (partial(make_sharded_vec_env, n_shards=2), MaskablePPO, "policy b does not use"),
        (make_vec_env, PPO, "policies a, b do not use"),
    ],
    ids=["alone", "shards", "two policies"],
)
def test_policies_that_do_not_use_the_masks_of_the_env_are_named_once(
    make: Any, of_a: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    env = make(ScriptedEnv, n_envs=2, masked=True)
    specs = {"a": PolicySpec(of_a), "b": PolicySpec(PPO)}
    algorithm = MultiAgentAlgorithm(env, specs, n_steps=8, batch_size=8, n_epochs=1, device="cpu")
    for _ in range(2):
        algorithm.forget_episodes()
        algorithm.train_iteration()
    (warning,) = [record.getMessage() for record in caplog.records if "masks" in record.getMessage()]
    assert warning.startswith(f"{words} the action masks of the env, and may choose forbidden actions; ")
    assert {"maskable_ppo", "maskable_a2c", "maskable_recurrent_ppo", "maskable_dqn"} <= {
        *warning.partition("; ")[2].removesuffix(" never do").split(", ")
    }
