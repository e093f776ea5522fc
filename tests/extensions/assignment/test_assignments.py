"""What an assignment of policies to agents changes, and what it does not; a new one joins by a line in `TESTED`."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stable_baselines3.common.utils import set_random_seed
from toy_envs import ScriptedEnv

from marl_sb3 import (
    DQN,
    PPO,
    Assignment,
    League,
    MultiAgentAlgorithm,
    MultiAgentCallback,
    PolicySpec,
    SampledAssignment,
    SwappedAssignment,
    evaluate_policies,
    load_policies,
    make_sharded_vec_env,
    make_vec_env,
)
from marl_sb3.callbacks import RecordEpisodes
from marl_sb3.core.state.state import StateReader, is_plain
from marl_sb3.core.vec_env.seeding import assignment_rng
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.extensions.assignment import AssignedRunner, FunctionAssignment, MappedEpisode
from marl_sb3.extensions.data.dataset import recorded_policies
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint

NET: Mapping[str, Any] = {"policy_kwargs": {"net_arch": [4]}}
ON = {**NET, "batch_size": 16, "n_epochs": 1}
OFF = {**NET, "learning_starts": 20, "batch_size": 4, "buffer_size": 2000}


class Table(Assignment):
    """Looks up which of two policies plays each agent; the second half of the table is a state.

    Args:
        rows: for each episode of any env, taken in turn: agent -> policy.
    """

    def __init__(self, rows: Sequence[Mapping[str, str]], policies: Sequence[str] = ("x", "y")) -> None:
        self.rows, self.policies, self.shift = rows, policies, 0

    def candidates(self, agents: Sequence[str]) -> Mapping[str, Sequence[str]]:
        return dict.fromkeys(agents, self.policies)

    def assign(self, env_index: int, episode: int, rng: np.random.Generator) -> Mapping[str, str]:
        return self.rows[(env_index + episode + self.shift) % len(self.rows)]

    def get_state(self) -> dict[str, Any]:
        return {"shift": self.shift}

    def set_state(self, state: StateReader) -> None:
        self.shift = state.integer("shift")


class Sides(Assignment):
    """`main` plays one side, drawn for each episode, and `rival` the other."""

    def candidates(self, agents: Sequence[str]) -> Mapping[str, Sequence[str]]:
        first, second = agents
        return {first: ("main", "rival"), second: ("rival", "main")}

    def assign(self, env_index: int, episode: int, rng: np.random.Generator) -> Mapping[str, str]:
        order = rng.permutation(["agent1", "agent2"]).tolist()
        return dict(zip(order, ("main", "rival"), strict=True))


class Always(Assignment):
    """The first candidate in every episode."""

    def __init__(self, candidates: Mapping[str, Sequence[str]]) -> None:
        self.of_agents = candidates

    def candidates(self, agents: Sequence[str]) -> Mapping[str, Sequence[str]]:
        return self.of_agents

    def assign(self, env_index: int, episode: int, rng: np.random.Generator) -> Mapping[str, str]:
        return {agent: first for agent, (first, *_) in self.of_agents.items()}


TURNING = cycle(["rival", "main", "rival"])  # a function that counts its calls gives no answers of the episode


def by_id(agent: str, episode: Any, **_: Any) -> str:
    """As in RLlib's examples of self-play; also with what else an episode has."""
    is_first = hash(episode.id_) % 2 == int(agent == "agent2")
    return ("main", "rival")[is_first ^ (episode.rng.random() < 0.3) ^ (episode.number + episode.env_index > 4)]


BOTH = {"agent1": ["main", "rival"], "agent2": ["rival", "main"]}
TURNS = [{"agent1": "x", "agent2": "y"}, {"agent1": "y", "agent2": "x"}, {"agent1": "x", "agent2": "x"}]
TESTED: Mapping[str, Callable[[], Assignment]] = {
    "table": lambda: Table(TURNS),
    "sides": Sides,
    "league": lambda: League(dict.fromkeys(("main", "rival"), ("agent1", "agent2")), snapshot_every=1),
    "sampled": lambda: SampledAssignment(BOTH),
    "weighted": lambda: SampledAssignment(BOTH, {"rival": 3}),
    "swapped": lambda: SwappedAssignment({"agent1": "main", "agent2": "rival"}),
    "function": lambda: FunctionAssignment(by_id, ["main", "rival"], [["agent1", "agent2"]]),
}


# --- Every assignment ------------------------------------------------------------------------------------------------


def answers(assignment: Assignment) -> list[Mapping[str, str]]:
    """In 12 episodes, in no order."""
    asked = [(env_index, episode) for episode in (2, 0, 1) for env_index in (1, 0, 3, 2)]
    return [assignment.assign(*each, assignment_rng(5, *each)) for each in asked]


@pytest.mark.parametrize("name", TESTED)
def test_an_assignment_gives_each_agent_one_of_its_candidates(name: str) -> None:
    assignment, agents = TESTED[name](), ("agent1", "agent2")
    candidates = assignment.candidates(agents)
    assert assignment.candidates(agents) == candidates
    assert set(candidates) == set(agents)
    assert all(chosen[agent] in candidates[agent] for chosen in answers(assignment) for agent in agents)


@pytest.mark.parametrize("name", TESTED)
def test_an_assignment_answers_by_its_arguments_and_its_state_alone(name: str) -> None:
    assignment, other = TESTED[name](), TESTED[name]()
    state = assignment.get_state()
    first = answers(assignment)
    assert is_plain(state)
    assert assignment.get_state() == state
    other.set_state(StateReader(state))
    assert first == answers(assignment) == answers(other) == answers(pickle.loads(pickle.dumps(assignment)))


def test_a_sampled_assignment_draws_by_the_weights_of_the_moment() -> None:
    sampled = SampledAssignment({"a": ["x", "y"], "b": "y"}, {"x": 3})
    drawn = Counter(sampled.assign(0, n, assignment_rng(0, 0, n))["a"] for n in range(400))
    assert drawn["x"] == pytest.approx(300, abs=3 * np.sqrt(400 * 3 / 16))
    sampled.weights["x"] = 0
    assert {sampled.assign(0, n, assignment_rng(0, 0, n))["a"] for n in range(20)} == {"y"}
    other = SampledAssignment({"a": ["x", "y"], "b": "y"})
    other.set_state(StateReader(sampled.get_state()))
    assert other.weights == {"x": 0.0}


def test_swapped_policies_are_those_of_their_group_in_each_order() -> None:
    of = {"a": "x", "b": "y", "c": "y", "d": "z", "e": "w"}
    swapped = SwappedAssignment(of, [["a", "b", "c"], ["d"], ["e"]])
    assert {a: set(own) for a, own in swapped.candidates("abcde").items()} == {
        **{agent: {"x", "y"} for agent in "abc"},
        "d": {"z"},
        "e": {"w"},
    }
    assert [own[0] for own in swapped.candidates("abcde").values()] == list(of.values())
    drawn = Counter("".join(swapped.assign(0, n, assignment_rng(0, 0, n)).values()) for n in range(300))
    assert drawn == {order: pytest.approx(100, abs=3 * np.sqrt(300 * 2 / 9)) for order in ("xyyzw", "yxyzw", "yyxzw")}


# --- Functions of the agent and the episode --------------------------------------------------------------------------


def test_an_episode_of_a_function_tells_env_number_identifier_and_random_numbers() -> None:
    episode, same = (MappedEpisode(3, 7, assignment_rng(5, 3, 7)) for _ in range(2))
    assert (episode.env_index, episode.number) == (3, 7)
    assert episode.id_ == episode.episode_id == hash(episode.id_) == 597845817417302217  # in every process
    assert episode.rng.random(3).tolist() == [same.rng.random() for _ in range(3)]
    assert all(
        set(chosen.values()) == {"main", "rival"} for chosen in answers(TESTED["function"]())
    )  # one draw for both
    ids = [MappedEpisode(*divmod(n, 20), assignment_rng(0, 0, 0)).id_ for n in range(400)]
    assert len(set(ids)) == 400
    assert sum(each % 2 for each in ids) == pytest.approx(200, abs=30)


def asked(function: Any, groups: Sequence[Sequence[str]] = (("a", "b"),), policies: str = "xyz") -> Mapping[str, Any]:
    """The candidates of the agents."""
    return FunctionAssignment(function, list(policies), groups).candidates("ab")


def test_a_function_that_does_not_read_the_episode_leaves_an_agent_its_policy() -> None:
    def function(agent: str, episode: Any) -> str:
        return "y" if agent == "a" or episode.number == 0 else "x"

    assert asked(function) == {"a": ("y",), "b": ("y", "x", "z")}


def test_policies_fit_the_agents_for_which_a_function_names_them_where_spaces_differ() -> None:
    def function(agent: str, episode: Any) -> str:
        return "x" if agent == "a" else str(episode.rng.choice(["y", "z"]))

    assert {a: set(own) for a, own in asked(function, ["a", "b"]).items()} == {"a": {"x"}, "b": {"y", "z"}}
    with pytest.raises(ConfigError, match="names policy 'w' in none of 16 episodes, and agents differ in their spaces"):
        asked(lambda agent, episode: {"a": "x", "b": "y"}[agent][episode.number :][:1] or agent, ["a", "b"], "xywab")


@pytest.mark.parametrize(
    ("function", "fixed"),
    [
        (lambda agent: agent, True),
        (lambda agent, table=("a", "b"): table[agent == "b"], True),
        (lambda agent, *_, **__: agent, True),
        (lambda agent_id, episode, **kwargs: agent_id, True),
        (lambda agent, episode=None: agent if episode.number < 3 else "a", False),
        (lambda agent, *others, **__: agent if others[0].number < 3 else "a", False),
    ],
)
def test_a_function_gets_the_episode_if_it_takes_one(function: Any, fixed: bool) -> None:
    env = make_vec_env(lambda: ScriptedEnv({"a": (2, "terminated"), "b": (2, "terminated")}), 1, seed=0)
    algorithm = MultiAgentAlgorithm(env, "per_agent", function, n_steps=8, seed=0, device="cpu", **ON)
    assert algorithm.candidates == ({} if fixed else {"a": ("a", "b"), "b": ("b", "a")})
    algorithm.learn(8)
    ended = [list(each.policy_of.values()) for each in algorithm.tracker.episodes]
    assert ended == [["a", "b"]] * 3 + [["a", "b" if fixed else "a"]]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda: "main",
            r"takes \(\); accepted: a function of one argument, the agent id, or of two, the agent id and",
        ),
        (lambda agent, episode, worker: "main", r"takes \(agent, episode, worker\); accepted: a function of one"),
        (lambda a, e: {}[a], "raised KeyError: 'agent1' for agent 'agent1' in episode 0 of env 0"),
        (lambda a, e: None, "returned None for agent 'agent1' in episode 0 of env 0; accepted: main, rival"),
        (lambda a, e: "m", "returned 'm' for agent 'agent1' in episode 0 of env 0; accepted: main, rival"),
        (lambda a, e: "main", "policy 'rival' acts for no agent"),
        (lambda a, e: random.choice(["main", "rival"]), "returned '.*' and then '.*' for agent 'agent1' in episode"),
        (lambda a, e: next(TURNING), "returned '.*' and then '.*' for agent 'agent1' in .*; accepted: answers that"),
        (lambda a, e: next(TURNING) if e.number + 1 else "", "returned '.*' and then '.*' for agent 'agent1' in"),
    ],
)
def test_a_function_that_cannot_work_is_refused(function: Any, words: str) -> None:
    specs = {name: PolicySpec(PPO, **ON) for name in ("main", "rival")}
    with pytest.raises(ConfigError, match=words):
        in_arena(VECTORIZERS["batched"], specs, function)


def test_a_fault_of_a_function_in_the_training_names_agent_env_and_episode() -> None:
    algorithm = in_arena(
        VECTORIZERS["batched"],
        {name: PolicySpec(PPO, **ON) for name in ("main", "rival")},
        lambda agent, episode: ["main", "rival"][(agent == "agent2") + episode.number // 9],
    )
    with pytest.raises(ConfigError, match=r"raised IndexError: .* for agent 'agent2' in episode 9 of env 0"):
        algorithm.learn(400)


# --- By hand ---------------------------------------------------------------------------------------------------------


class Keeps(MultiAgentCallback):
    """Keeps the transitions in the rollouts, and who played the episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.rollouts: dict[str, list[Any]] = {"x": [], "y": []}
        self.began: list[Mapping[str, str]] = []
        self.ended: list[Mapping[str, str]] = []

    def on_episode_start(self, episode: Any) -> None:
        self.began.append(episode.policy_of)

    def on_episode_end(self, episode: Any) -> None:
        self.ended.append(episode.policy_of)

    def _on_rollout_end(self) -> None:
        for policy_id, kept in self.rollouts.items():
            buffer: Any = self.algorithm.policies[policy_id].rollout_buffer
            lines, rows = np.nonzero(buffer.acted)
            kept.append(
                [
                    (*map(int, seen), reward)
                    for seen, reward in zip(
                        buffer.observations[lines, rows].tolist(), buffer.rewards[lines, rows].tolist(), strict=True
                    )
                ]
            )


def by_hand(n_steps: int, rows: Sequence[Mapping[str, str]], **script: Any) -> tuple[MultiAgentAlgorithm, Keeps]:
    env = make_vec_env(lambda: ScriptedEnv({"a": (2, "terminated"), "b": (2, "terminated")}, **script), 1, seed=0)
    specs = {name: PolicySpec(PPO, **ON) for name in ("x", "y")}
    algorithm, keeps = MultiAgentAlgorithm(env, specs, Table(rows), n_steps=n_steps, seed=0, device="cpu"), Keeps()
    algorithm.learn(n_steps, callback=keeps)
    return algorithm, keeps


def test_a_policy_gets_the_transitions_of_the_agents_that_it_plays() -> None:
    """Episodes of two steps; a, number 1, is paid 1 in each, b, number 2, is paid 2. y plays b, then a, then none."""
    rows = [{"a": "x", "b": "y"}, {"a": "y", "b": "x"}, {"a": "x", "b": "x"}]
    algorithm, keeps = by_hand(6, rows)
    x = [(1, 1, 0, 1.0), (1, 1, 1, 1.0), (2, 2, 0, 2.0), (2, 2, 1, 2.0)]
    x += [(1, 3, 0, 1.0), (2, 3, 0, 2.0), (1, 3, 1, 1.0), (2, 3, 1, 2.0)]
    assert keeps.rollouts["x"] == [x]
    assert keeps.rollouts["y"] == [[(2, 1, 0, 2.0), (2, 1, 1, 2.0), (1, 2, 0, 1.0), (1, 2, 1, 1.0)]]
    assert [p.num_timesteps for p in algorithm.policies.values()] == [8, 4]
    assert (keeps.began, keeps.ended) == ([*rows, rows[0]], rows)
    metrics = algorithm.tracker.summary()
    assert metrics["module_episode_returns_mean"] == {"x": (2 + 4 + 2 + 4) / 4, "y": (4 + 2) / 2}
    assert metrics["agent_episode_returns_mean"] == {"a": 2.0, "b": 4.0}


def test_a_policy_that_waits_for_whole_rollouts_learns_nothing_in_them() -> None:
    algorithm, keeps = by_hand(2, [{"a": "x", "b": "x"}, {"a": "y", "b": "y"}])
    assert keeps.rollouts == {"x": [[(1, 1, 0, 1.0), (2, 1, 0, 2.0), (1, 1, 1, 1.0), (2, 1, 1, 2.0)]], "y": [[]]}
    idle: Any = algorithm.policies["y"]
    assert (idle.num_grad_updates, algorithm.policies["x"].num_grad_updates) == (0, 1)


def test_rewards_of_a_turn_go_to_the_policy_that_played_it() -> None:
    """b waits in the last step, in which its episode ends: both rewards belong to its one action."""
    rows = [{"a": "x", "b": "y"}, {"a": "y", "b": "x"}]
    _, keeps = by_hand(4, rows, skips={"b": [1]})
    assert keeps.rollouts["y"] == [[(2, 1, 0, 4.0), (1, 2, 0, 1.0), (1, 2, 1, 1.0)]]


class KeepsOthers(MultiAgentCallback):
    """Keeps each trajectory's policy and agent, and the policies of the other agents in it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, dict[str, str]]] = []

    def on_trajectory(self, trajectory: Any) -> None:
        others = {agent: other.policy_id for agent, other in trajectory.others.items()}
        self.seen.append((trajectory.policy_id, trajectory.agent, others))


def test_trajectories_tell_who_played_the_other_agents() -> None:
    env = make_vec_env(lambda: ScriptedEnv({"a": (2, "terminated"), "b": (2, "terminated")}), 1, seed=0)
    specs = {name: PolicySpec(PPO, **ON) for name in ("x", "y")}
    mapping = Table([{"a": "x", "b": "y"}, {"a": "y", "b": "x"}])
    algorithm, keeps = MultiAgentAlgorithm(env, specs, mapping, n_steps=4, seed=0, device="cpu"), KeepsOthers()
    algorithm.learn(4, callback=keeps)
    x = [("x", "a", {"b": "y"}), ("x", "b", {"a": "y"})]
    y = [("y", "a", {"b": "x"}), ("y", "b", {"a": "x"})]
    assert sorted(keeps.seen, key=str) == sorted(x + y, key=str)


def test_recordings_have_the_episodes_of_a_policy_under_its_name(tmp_path: Path) -> None:
    specs = {name: PolicySpec(PPO, **ON) for name in ("x", "y")}
    algorithm = in_arena(VECTORIZERS["batched"], specs, Table(TURNS))
    algorithm.learn(96, callback=RecordEpisodes(tmp_path / "recording"))
    found = {
        name: Counter((e.env_index, e.agent) for e in data.episodes)
        for name, data in recorded_policies(tmp_path / "recording").items()
    }
    expected: dict[str, Counter[tuple[int, str]]] = {"x": Counter(), "y": Counter()}
    for episode in algorithm.tracker.episodes:
        for agent, policy_id in episode.policy_of.items():
            expected[policy_id][episode.env_index, agent] += 1
    assert found == expected


# --- Whatever the assignment -----------------------------------------------------------------------------------------


class Logged(ScriptedEnv):
    """Agents see their number + 10 x the number of the env; the log has [that, episode, step, action] of each turn."""

    log: ClassVar[list[tuple[int, ...]]] = []

    def observation(self, agent: str) -> np.ndarray:
        return super().observation(agent) + np.array([10 * self.env_index, 0, 0], dtype=np.float32)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        Logged.log += [(*map(int, self.observation(agent)), int(action)) for agent, action in actions.items()]
        return super().step(actions)


KINDS = ("terminated", "truncated", "both")
ENDS = {"a": st.just(5), "b": st.integers(1, 5), "c": st.integers(1, 5)}  # somebody must act: a does until the end
SCRIPTS = st.fixed_dictionaries({agent: st.tuples(end, st.sampled_from(KINDS)) for agent, end in ENDS.items()})
ROWS = st.lists(st.fixed_dictionaries({a: st.sampled_from("xy") for a in "abc"}), min_size=1, max_size=5)
SKIPS = st.fixed_dictionaries({agent: st.sets(st.integers(1, 4)) for agent in "bc"})


def require_own_transitions(script: Any, skips: Any, rows: Any) -> None:
    """Fail unless both policies have learned from exactly what they played, as far as it is over."""
    Logged.log, script = [], {agent: script[agent] for agent in "abc"}
    env = make_vec_env(Logged, 2, seed=0, script=script, skips=skips)
    specs = {name: PolicySpec(DQN, **OFF) for name in ("x", "y")}
    algorithm = MultiAgentAlgorithm(env, specs, Table(rows), n_steps=12, seed=0, device="cpu")
    algorithm.learn(24)
    played: dict[str, list[tuple[int, ...]]] = {"x": [], "y": []}
    for turn in Logged.log:
        env_index, agent = divmod(turn[0], 10)
        played[rows[(env_index + turn[1] - 1) % len(rows)]["abc"[agent - 1]]].append(turn)
    newest = {turn[0]: turn for turn in Logged.log}  # the latest turn of each agent may not be over
    for policy_id, turns in played.items():
        learned = in_replay_buffer(algorithm.policies[policy_id])
        assert set(learned) <= set(turns)
        assert set(turns) - set(learned) <= set(newest.values())
        for turn in set(learned) - set(newest.values()):
            agent, episode, step, _ = turn
            end, kind = script["abc"[agent % 10 - 1]]
            later = [other for who, when, other, _ in turns if (who, when) == (agent, episode) and other > step]
            until = min([end, *later])
            is_over = not later
            expected = (agent, episode, until, agent % 10 * (until - step), is_over, is_over and kind == "truncated")
            assert learned[turn] == expected
    assert [p.num_timesteps for p in algorithm.policies.values()] == [len(turns) for turns in played.values()]


def in_replay_buffer(policy: Any) -> dict[tuple[int, ...], tuple[Any, ...]]:
    """(agent, episode, step, action) -> what came of it: the next such observation, reward, done, timeout."""
    buffer, found = policy.replay_buffer, {}
    names = ("observations", "actions", "next_observations", "rewards", "dones", "timeouts")
    held = buffer.num_transitions
    columns = [getattr(buffer, name).reshape(buffer.buffer_size * buffer.n_envs, -1)[:held].tolist() for name in names]
    for seen, action, following, (reward,), (done,), (timeout,) in zip(*columns, strict=True):
        found[(*map(int, seen), *action)] = (*map(int, following), reward, done == 1, timeout == 1)
    assert len(found) == held
    return found


CHANGING = [{"a": "x", "b": "y", "c": "x"}, {"a": "y", "b": "x", "c": "x"}]
PLAIN: dict[str, Any] = {"a": (2, "terminated"), "b": (3, "truncated"), "c": (1, "both")}


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCRIPTS, SKIPS, ROWS)
@example(PLAIN, {"b": {1}}, CHANGING)
def test_each_policy_learns_from_what_it_played(script: Any, skips: Any, rows: Any) -> None:
    require_own_transitions(script, skips, rows)


@pytest.mark.proof
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCRIPTS, SKIPS, ROWS)
def test_each_policy_learns_from_what_it_played_many(script: Any, skips: Any, rows: Any) -> None:
    require_own_transitions(script, skips, rows)


@pytest.mark.parametrize("fault", ["drawn too late", "drawn too early", "ends of others"])
def test_a_wrong_view_of_a_step_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record, seen_by = AssignedRunner._record, AssignedRunner._seen_by

    def wrong_record(self: AssignedRunner, step: Any) -> Any:
        before = self._plays
        episodes = record(self, step)
        if fault == "drawn too early":
            self.played = self._plays
        elif fault == "drawn too late":
            self._plays = before
        return episodes

    def wrong_view(self: AssignedRunner, actor: Any, step: Any) -> Any:
        if fault == "ends of others":
            self.played = self._plays
        return seen_by(self, actor, step)

    monkeypatch.setattr(AssignedRunner, "_record", wrong_record)
    monkeypatch.setattr(AssignedRunner, "_seen_by", wrong_view)
    with pytest.raises(AssertionError):
        require_own_transitions(PLAIN, {}, CHANGING)


# --- The same bits ---------------------------------------------------------------------------------------------------

VECTORIZERS: Mapping[str, Mapping[str, Any]] = {
    "sync": {"vectorizer": "sync"},
    "batched": {"vectorizer": "batched"},
    "workers": {"vectorizer": "sync", "n_workers": 2},
    "shards": {"n_shards": 2},
}


def in_arena(where: Mapping[str, Any], specs: Any, mapping: Any, **options: Any) -> MultiAgentAlgorithm:
    make: Any = make_sharded_vec_env if "n_shards" in where else make_vec_env
    env = make("arena", n_envs=4, seed=0, max_timesteps=7, **where)
    return MultiAgentAlgorithm(env, specs, mapping, n_steps=12, seed=1, device="cpu", **options)


def learned(algorithm: MultiAgentAlgorithm, iterations: int = 3) -> dict[str, Any]:
    """Tensors of policies by id and name, after some iterations."""
    set_random_seed(3)
    algorithm.learn(iterations * 48, reset_num_timesteps=False)
    algorithm.env.close()
    return tensors(algorithm)


def tensors(algorithm: MultiAgentAlgorithm) -> dict[str, Any]:
    of = {policy_id: learner.get_tensors() for policy_id, learner in algorithm.parts.learners.items()}
    return {
        f"{own}/{kind}/{n}": a for own, kinds in of.items() for kind, each in kinds.items() for n, a in each.items()
    }


def require_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("where", VECTORIZERS)
def test_an_assignment_that_does_not_vary_gives_the_bits_of_a_fixed_mapping(where: str) -> None:
    # No random actions: policies of a process share the generator of their action space.
    greedy = {"learning_starts": 0, "exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}
    specs = {"p1": PolicySpec(PPO, **ON), "p2": PolicySpec(DQN, **{**OFF, **greedy})}
    fixed = {"agent1": "p1", "agent2": "p2"}
    spare = {**specs, "spare": PolicySpec(PPO, **ON)}
    trained = {"policies_to_train": ["p1", "p2"]}
    always = Always({agent: [policy_id, "spare"] for agent, policy_id in fixed.items()})
    expected = learned(in_arena(VECTORIZERS[where], specs, fixed, **trained))
    require_same(expected, learned(in_arena(VECTORIZERS[where], spare, always, **trained)))


def test_rows_that_always_wait_change_no_bit_of_a_rollout() -> None:
    specs = {name: PolicySpec(PPO, **ON) for name in ("main", "rival")}
    fixed = {"agent1": "main", "agent2": "rival"}
    expected = learned(in_arena(VECTORIZERS["sync"], specs, fixed))
    require_same(expected, learned(in_arena(VECTORIZERS["sync"], specs, Always(BOTH))))


@pytest.mark.parametrize("policies", ["shared", "per_agent"])
@pytest.mark.parametrize(("kind", "options"), [(PPO, ON), (DQN, OFF)])
def test_a_function_that_ignores_the_episode_gives_the_bits_of_one_of_the_agent(
    kind: Any, options: Any, policies: str
) -> None:
    names = ["agent1", "agent2"] if policies == "per_agent" else ["shared"]
    specs = {name: PolicySpec(kind, **options) for name in names}
    where = VECTORIZERS["batched"]
    runs = [lambda a: a if names[1:] else "shared", lambda a, e, **_: a if names[1:] else "shared"]
    if kind is PPO:  # rows that wait change no bit: this one may vary as far as anybody knows
        runs.append(lambda a, e: names[-1] if a == "agent2" or e.number < 0 else names[0])
    expected, *others = [learned(in_arena(where, specs, function)) for function in runs]
    for other in others:
        require_same(expected, other)


def test_all_vectorizers_give_the_same_bits() -> None:
    specs = {"main": PolicySpec(PPO, **ON), "rival": PolicySpec(DQN, **OFF)}
    runs = [learned(in_arena(VECTORIZERS[name], specs, SampledAssignment(BOTH))) for name in list(VECTORIZERS)[:3]]
    for other in runs[1:]:
        require_same(runs[0], other)


@pytest.mark.parametrize("mapping", [Sides(), by_id], ids=["sides", "function"])
def test_shards_agree_with_vec_envs_on_who_plays_wherever_they_are_rolled_out(mapping: Any) -> None:
    specs = {"main": PolicySpec(PPO, **ON), "rival": PolicySpec(DQN, **OFF)}
    here, away, whole = (
        in_arena(where, specs, mapping) for where in ({"n_shards": 2}, {"n_shards": 2, "runners": 2}, {})
    )
    require_same(learned(here), learned(away))
    learned(whole)
    for other in (here, away):
        assert [p.num_timesteps for p in other.policies.values()] == [p.num_timesteps for p in whole.policies.values()]
        assert [e.policy_of for e in other.tracker.episodes] == [e.policy_of for e in whole.tracker.episodes]


# --- Checkpoints, evaluations ----------------------------------------------------------------------------------------


class Shifts(MultiAgentCallback):
    """Changes the state of a table after each iteration."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table

    def on_iteration_end(self, result: Any) -> bool:
        self.table.shift += 1
        return True


@pytest.mark.parametrize("where", ["batched", "shards"])
def test_a_training_that_is_loaded_in_the_middle_of_episodes_goes_on_with_the_same_bits(
    where: str, tmp_path: Path
) -> None:
    def made() -> tuple[MultiAgentAlgorithm, Table]:
        specs = {"x": PolicySpec(PPO, **ON), "y": PolicySpec(DQN, **OFF)}
        return in_arena(VECTORIZERS[where], specs, table := Table(TURNS)), table

    whole, table = made()
    whole.learn(96, callback=Shifts(table))
    whole.save(tmp_path / "saved")
    whole.learn(96, callback=Shifts(table), reset_num_timesteps=False)
    table = Table(TURNS)
    loaded = MultiAgentAlgorithm.load(tmp_path / "saved", made()[0].env, policy_mapping_fn=table, device="cpu", seed=1)
    assert table.shift == 2
    loaded.learn(96, callback=Shifts(table), reset_num_timesteps=False)
    require_same(tensors(whole), tensors(loaded))
    assert [vars(e) | {"duration_s": 0} for e in whole.tracker.episodes] == [
        vars(e) | {"duration_s": 0} for e in loaded.tracker.episodes
    ]


def saved(folder: Path, mapping: Any) -> Any:
    specs = {"main": PolicySpec(PPO, agent_indicator=True, **ON), "rival": PolicySpec(PPO, **ON)}
    algorithm = in_arena(VECTORIZERS["batched"], specs, mapping)
    algorithm.learn(48)
    algorithm.save(folder)
    return algorithm


def test_a_checkpoint_needs_the_assignment_and_refuses_others(tmp_path: Path) -> None:
    saved(tmp_path / "varied", SampledAssignment(BOTH))
    saved(tmp_path / "fixed", {"agent1": "main", "agent2": "rival"})
    env = make_vec_env("arena", n_envs=4, max_timesteps=7)
    with pytest.raises(ConfigError, match=r"an Assignment has chosen the policies .*: pass `policy_mapping_fn`"):
        MultiAgentAlgorithm.load(tmp_path / "varied", env)
    with pytest.raises(CheckpointError, match=r"candidates of agents: .*'rival'.* given, the checkpoint has .*main"):
        MultiAgentAlgorithm.load(tmp_path / "fixed", env, policy_mapping_fn=SampledAssignment(BOTH))
    other = SampledAssignment({"agent1": ["rival", "main"], "agent2": ["main", "rival"]})
    with pytest.raises(CheckpointError, match="agent 'agent1': 'rival' given, the checkpoint has 'main'"):
        MultiAgentAlgorithm.load(tmp_path / "varied", env, policy_mapping_fn=other)


def test_the_checkpoint_of_a_fixed_mapping_says_nothing_of_assignments(tmp_path: Path) -> None:
    saved(tmp_path / "fixed", {"agent1": "main", "agent2": "rival"})
    state = read_checkpoint(tmp_path / "fixed").state
    assert "candidates" not in state
    assert set(state["env"]) == {"running", "left_out"}
    assert "played" not in state["tracker"]["finished"]


def test_a_damaged_state_of_who_plays_is_refused(tmp_path: Path) -> None:
    algorithm = saved(tmp_path / "varied", SampledAssignment(BOTH))
    checkpoint = read_checkpoint(tmp_path / "varied")
    checkpoint.state["env"]["assignment"]["plays"][0, 0] = 2
    with pytest.raises(CheckpointError, match=r"plays is an array .*; accepted: numbers of candidates"):
        algorithm.set_state(checkpoint)
    checkpoint = read_checkpoint(tmp_path / "varied")
    checkpoint.state["tracker"]["finished"]["played"][0, 0] = 3
    with pytest.raises(CheckpointError, match="played is 3; accepted: the number of a candidate, at most 2"):
        algorithm.set_state(checkpoint)


def test_evaluations_play_the_first_candidates_also_from_a_checkpoint(tmp_path: Path) -> None:
    algorithm = saved(tmp_path / "varied", SampledAssignment(BOTH))
    loaded = load_policies(tmp_path / "varied")
    assert loaded.policy_of == algorithm.policy_of == {"agent1": "main", "agent2": "rival"}
    assert loaded.agents_of("main") == algorithm.agents_of("main") == ["agent1", "agent2"]
    one, other = (
        evaluate_policies(policies, make_vec_env("arena", n_envs=2, max_timesteps=7), n_episodes=3, seed=0)
        for policies in (algorithm, loaded)
    )
    assert one["agent_episode_returns_mean"] == other["agent_episode_returns_mean"]
    assert set(one["module_episode_returns_mean"]) == {"main", "rival"}


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        (lambda: SampledAssignment({"agent1": ["main", "rival"]}), "leaves out agent 'agent2'"),
        (lambda: SampledAssignment({**BOTH, "agent3": "main"}), "names agent 'agent3'; the env has agent1, agent2"),
        (lambda: SampledAssignment({**BOTH, "agent2": ["main", "m"]}), "unknown policy 'm'"),
        (lambda: SampledAssignment({"agent1": "main", "agent2": "main"}), "policy 'rival' acts for no agent"),
        (lambda: SampledAssignment(BOTH, {"rival": -1}), "weight of policy 'rival' is -1; accepted: a number from 0"),
        (lambda: SampledAssignment(BOTH, {"m": 1}), "weights has policy 'm'; accepted: main, rival"),
        (lambda: SampledAssignment([("agent1", "main")]), "accepted: a mapping of agents to lists"),  # type: ignore[arg-type]
        (lambda: 5, "policy_mapping_fn is 5; accepted: .* or an Assignment"),
    ],
)
def test_a_mapping_that_cannot_work_is_refused(mapping: Callable[[], Any], words: str) -> None:
    specs = {name: PolicySpec(PPO, **ON) for name in ("main", "rival")}
    with pytest.raises(ConfigError, match=words):
        in_arena(VECTORIZERS["batched"], specs, mapping())


def test_an_answer_that_is_no_candidate_is_refused_with_env_and_episode() -> None:
    with pytest.raises(ConfigError, match=r"Table.assign\(0, 0, ...\) gives agent 'b' the policy 'z'; accepted: x, y"):
        by_hand(2, [{"a": "x", "b": "z"}])
