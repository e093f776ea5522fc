"""What `on_trajectory` is shown, and what is learned afterwards, against a log of the envs and stock SB3's buffers."""

from __future__ import annotations

import inspect
import itertools
import textwrap
import threading
from collections import defaultdict
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch as th
from clients import Simulator, external
from gymnasium import spaces
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.vec_env import VecEnvWrapper
from toy_envs import NoisyEnv, ScriptedEnv
from turn_env import TurnEnv, turn_env_plans
from turn_plans import env_plans

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, Trajectory, make_vec_env
from marl_sb3.extensions.hooks import rewriting

GAMMA, LAMBDA, VALUE = 0.7, 0.6, 2.5
NET = {"net_arch": []}


class Telling(NoisyEnv):
    """Its infos are a log: which agent, in which episode and step of which env, was paid what, and how it ended."""

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        seen, paid, terminated, truncated, infos = super().step(actions)
        for agent, reward in paid.items():
            place = (self.env_index, self.episode, self.step_count)
            ends = (bool(terminated[agent]), bool(truncated[agent]))
            infos[agent] = {**infos.get(agent, {}), "of": (agent, *place), "paid": reward, "ends": ends}
        return seen, paid, terminated, truncated, infos


# --- A log of the envs ------------------------------------------------------------------------------------------------


@dataclass
class Entry:
    """One env step: who acted on which observation, and what came of it."""

    acted: Mapping[str, tuple[Any, Any]]
    paid: Mapping[str, float]
    terminated: set[str]
    truncated: set[str]
    infos: Mapping[str, Any]
    final: Mapping[str, Any]


@dataclass
class Own:
    """A transition of one agent; `end` is the number of the env step after it; None: it is not over."""

    begin: int
    observation: Any
    action: Any
    life: int
    paid: list[float] = field(default_factory=list)
    info: Any = field(default_factory=dict)
    end: int | None = None
    ended: bool = False
    truncated: bool = False
    terminated: bool = False
    final: Any = None
    following: Any = None  # what the agent saw next, if it went on
    cut: bool = False  # the episode was given up in the agent's next transition


class Log:
    """Notes the steps of a vec env, as they pass by its `reset` and `step`."""

    def __init__(self, env: Any) -> None:
        self.env, self.entries = env, [list[Entry]() for _ in range(env.num_envs)]
        self.asked: list[dict[str, Any]] = [{} for _ in range(env.num_envs)]
        self.cuts = [defaultdict[int, list[dict[str, Any]]](list) for _ in range(env.num_envs)]
        reset, step = env.reset, env.step
        env.reset = lambda *options: self.begin(reset(*options))
        env.step = lambda actions: self.add(actions, step(actions))

    def begin(self, step: Any) -> Any:
        self.latest = step.copy()
        return step

    def add(self, actions: Any, step: Any) -> Any:
        agents = self.env.agents
        for index in range(self.env.num_envs):
            for column, agent in enumerate(agents):
                if self.latest.to_act[index, column]:
                    seen, action = self.latest.observations[0][index, column], np.array(actions[0][index, column])
                    self.asked[index][agent] = seen, action
        for index in step.given_up:
            self.cuts[index][len(self.entries[index])].append(self.asked[index])
            self.asked[index] = {}
        for index in np.flatnonzero(step.stepped).tolist():
            named = {
                name: {agent for column, agent in enumerate(agents) if getattr(step, name)[index, column]}
                for name in ("terminated", "truncated")
            }
            paid = dict(zip(agents, step.rewards[index].tolist(), strict=True))
            final = {a: np.array(step.final_observations[index, c]) for c, a in enumerate(agents)
                     if (index, c) in step.final_observations}  # fmt: skip
            infos = deepcopy(dict(step.infos[index]))
            self.entries[index].append(Entry(self.asked[index], paid, infos=infos, final=final, **named))
            self.asked[index] = {}
        self.latest = step.copy()
        return step

    def transitions(self, index: int, agent: str) -> list[Own]:
        """All transitions of an agent, in order; the last one may not be over, or be cut off."""
        found: list[Own] = []
        now: Own | None = None
        life = 0

        def act(number: int, seen: Any, action: Any) -> Own:
            if now is not None:
                now.end, now.following = number, seen
            found.append(Own(number, seen, action, life))
            return found[-1]

        for number, entry in enumerate([*self.entries[index], None]):
            for lost in self.cuts[index].get(number, ()):
                if agent in lost:
                    now = act(number, *lost[agent])
                if now is not None:  # it has no outcome: nobody sees it
                    found.pop()
                    if found and found[-1].life == life:
                        found[-1].cut = True
                now, life = None, life + 1
            acted = self.asked[index] if entry is None else entry.acted
            if agent in acted:
                now = act(number, *acted[agent])
            if entry is None or now is None:
                continue
            now.paid.append(entry.paid[agent])
            now.info = entry.infos.get(agent, now.info)
            if agent in entry.terminated | entry.truncated:
                now.end, now.ended, now.final = number + 1, True, entry.final.get(agent)
                now.truncated, now.terminated = agent in entry.truncated, agent in entry.terminated
                now, life = None, life + 1
        column = self.env.agents.index(agent)
        if now is not None and self.latest.to_act[index, column]:
            now.end, now.following = len(self.entries[index]), self.latest.observations[0][index, column]
        return found


# --- A hook that changes what it is shown -----------------------------------------------------------------------------


class Rewrites(MultiAgentCallback):
    """Changes trajectories at random, notes what it was shown and has left, and checks the buffers before updates.

    Args:
        log: of the envs.
        share: of the transitions that are dropped; and of the trajectories whose rewards and values are changed.
        check: of a buffer, before an update.
    """

    def __init__(self, log: Log, share: float, check: Any = None) -> None:
        super().__init__()
        self.log, self.share, self.check = log, share, check
        self.shown: list[tuple[Trajectory, dict[str, Trajectory]]] = []
        self.left: dict[Any, list[Trajectory]] = defaultdict(list)  # since the latest update
        self.checked = 0

    def on_trajectory(self, trajectory: Trajectory) -> None:
        others = {name: deepcopy(other) for name, other in trajectory.others.items()}
        trajectory.others, trajectory.estimate, estimate = {}, None, trajectory.estimate
        self.shown.append((deepcopy(trajectory), others))
        trajectory.estimate = estimate
        rng = np.random.default_rng([trajectory.env_index, int(trajectory.steps[0]), trajectory.end])
        if rng.random() < self.share:
            trajectory.rewards = (2 * trajectory.rewards + 1).astype(np.float32)
        if trajectory.values is not None and rng.random() < self.share:
            trajectory.values = trajectory.values + np.float32(0.5)
        if rng.random() < self.share:
            trajectory.observations[:, 1] += 0.25
        trajectory.keep &= rng.random(len(trajectory)) >= self.share / 2
        self.left[trajectory.env_index, trajectory.agent].append(trajectory)

    def on_update_start(self, policy_id: str, batch: Any) -> None:
        mine = [agent for agent in self.log.env.agents if self.algorithm.policy_of[agent] == policy_id]
        for row in range(batch.n_envs) if self.check is not None else ():
            who = row // len(mine), mine[row % len(mine)]
            self.checked += self.check(self, batch, row, who, self.left.pop(who, []))


def told(infos: Any) -> list[Any]:
    """Infos without action masks."""
    return [{name: value for name, value in info.items() if name != "action_mask"} for info in infos]


def assert_shown_as_logged(rewrites: Rewrites) -> int:
    """Each transition that is over was shown once, in order, as the envs have logged it; returns how many."""
    log, shown = rewrites.log, defaultdict(list)
    for trajectory, others in rewrites.shown:
        shown[trajectory.env_index, trajectory.agent].append(trajectory)
        for agent in log.env.agents:
            if agent != trajectory.agent:
                assert_other_as_logged(log, trajectory, agent, others.get(agent))
    for who, parts in shown.items():
        logged = iter(log.transitions(*who))
        for trajectory in parts:
            own = [next(logged) for _ in range(len(trajectory))]
            assert len({each.life for each in own}) == 1, "of one episode"
            assert trajectory.steps.tolist() == [each.begin for each in own]
            assert trajectory.end == own[-1].end
            paid = [np.sum(each.paid) for each in own]
            np.testing.assert_allclose(trajectory.rewards, paid, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(trajectory.observations, [each.observation for each in own])
            assert trajectory.actions.reshape(-1).tolist() == [int(each.action) for each in own]
            assert told(trajectory.infos) == told([each.info for each in own])
            assert (trajectory.has_ended, trajectory.truncated) == (own[-1].ended, own[-1].truncated)
            assert not any(each.ended for each in own[:-1])
    return sum(len(each) for each, _ in rewrites.shown)


def assert_other_as_logged(log: Log, own: Trajectory, agent: str, other: Trajectory | None) -> None:
    entries = list(enumerate(log.entries[own.env_index]))[int(own.steps[0]) : own.end]
    turns = [number for number, entry in entries if agent in entry.acted]
    if not turns:
        assert other is None
        return
    assert other is not None
    assert other.steps.tolist() == turns
    ends = [n + 1 for n, entry in entries if n >= turns[-1] and agent in entry.terminated | entry.truncated]
    assert (other.end, other.has_ended) == ((ends or [own.end])[0], bool(ends))
    ranges = [
        [entry for n, entry in entries if begin <= n < end] for begin, end in itertools.pairwise([*turns, other.end])
    ]
    assert other.truncated == (bool(ends) and agent in ranges[-1][-1].truncated)
    np.testing.assert_allclose(
        other.rewards, [sum(e.paid[agent] for e in each) for each in ranges], rtol=1e-4, atol=1e-5
    )
    known = [[entry.infos[agent] for entry in each if agent in entry.infos] for each in ranges]
    assert told(other.infos) == told([(each or [{}])[-1] for each in known])
    np.testing.assert_allclose(other.observations, [entry.acted[agent][0] for n, entry in entries if n in turns])


# --- Rollouts ---------------------------------------------------------------------------------------------------------


def check_rollout(rewrites: Rewrites, buffer: Any, row: int, who: Any, left: list[Trajectory]) -> int:
    """Returns and advantages are those of a stock buffer with what the hook has left, as one row."""
    policy = rewrites.algorithm.policies[rewrites.algorithm.policy_of[who[1]]]
    recurrent = hasattr(buffer, "hidden_states_pi")

    def value_of(observation: Any) -> float:
        if recurrent:
            return VALUE
        with th.no_grad():
            return float(policy.policy.predict_values(th.as_tensor(np.asarray(observation)[None])))

    logged = {own.begin: own for own in rewrites.log.transitions(*who)}
    lines: list[tuple[Any, ...]] = []  # observation, action, reward, start, value, log_prob
    last_value, done = 0.0, True
    for trajectory in left:
        keep, last = trajectory.keep, len(trajectory) - 1
        for number in np.flatnonzero(keep).tolist():
            own, reward = logged[int(trajectory.steps[number])], float(trajectory.rewards[number])
            last_value, done = 0.0, True
            if number < last and not keep[number + 1]:
                reward += GAMMA * float(trajectory.values[number + 1])
            elif number == last and own.truncated and not own.terminated:
                reward += GAMMA * value_of(own.final)
            elif number == last and own.cut:
                reward += GAMMA * value_of(own.following)
            elif not own.ended:
                last_value, done = value_of(own.following), False
            start = number == 0 or not keep[number - 1]
            action, log_prob = trajectory.actions[number], trajectory.log_probs[number]
            lines.append((trajectory.observations[number], action, reward, start, trajectory.values[number], log_prob))
        if not keep[-1]:
            last_value, done = 0.0, True
    where = np.flatnonzero(buffer.acted[:, row])
    assert len(where) == len(lines)
    if not lines:
        return 0
    stock = RolloutBuffer(len(lines), buffer.observation_space, buffer.action_space, "cpu", LAMBDA, GAMMA, 1)
    for observation, action, reward, start, value, log_prob in lines:
        stock.add(observation, action, np.float32(reward), np.array([start]), th.tensor([value]), th.tensor([log_prob]))
    stock.compute_returns_and_advantage(th.tensor([last_value]), np.array([done]))
    for name in ("observations", "actions"):
        np.testing.assert_array_equal(getattr(buffer, name)[where, row], getattr(stock, name)[:, 0])
    for name in ("values", "log_probs", "returns", "advantages"):
        found, expected = getattr(buffer, name)[where, row], getattr(stock, name)[:, 0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=name)
    # Where a transition is missing, a sequence begins anew, but no episode: the state is the one that was there.
    missing = [number > 0 and not each.keep[number - 1] for each in left for number in np.flatnonzero(each.keep)]
    assert buffer.breaks[where, row].tolist() == missing
    first = {life: min(own.begin for own in logged.values() if own.life == life) for life in
             {own.life for own in logged.values()}}  # fmt: skip
    begins = [int(step) == first[logged[int(step)].life] for each in left for step in each.steps[each.keep]]
    assert (buffer.episode_starts[where, row] > 0).tolist() == begins
    return len(lines)


def train_rollouts(env: Any, algo: str, policies: str, n_steps: int, rollouts: int, share: float) -> Rewrites:
    log = Log(env)
    more: dict[str, Any] = {} if algo == "a2c" else {"batch_size": 3, "n_epochs": 1}
    recurrent = {"lstm_hidden_size": 4} if algo == "recurrent_ppo" else {}
    spec = PolicySpec(
        algo, n_steps=n_steps, gamma=GAMMA, gae_lambda=LAMBDA, policy_kwargs={**NET, **recurrent},
        learning_rate=0.003, **more,
    )  # fmt: skip
    names = ["shared"] if policies == "shared" else env.agents
    mapping = None if policies == "shared" else {agent: agent for agent in env.agents}
    made = MultiAgentAlgorithm(env, dict.fromkeys(names, spec), mapping, n_steps=n_steps, seed=0, device="cpu")
    for policy in made.policies.values() if recurrent else ():
        with th.no_grad():
            policy.policy.value_net.weight.zero_()
            policy.policy.value_net.bias.fill_(VALUE)
        policy.policy.value_net.requires_grad_(False)
    rewrites = Rewrites(log, share, check_rollout)
    made.learn(n_steps * rollouts * env.num_envs, rewrites)
    env.close()
    return rewrites


QUICK: Mapping[str, Any] = {
    "deadline": None, "derandomize": True, "database": None, "phases": (Phase.explicit, Phase.generate),
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}  # fmt: skip
ROLLOUTS = {"n_steps": st.integers(2, 7), "rollouts": st.integers(1, 4), "share": st.sampled_from([0.0, 0.4, 0.8])}
ALGOS = st.sampled_from([("ppo", "shared"), ("ppo", "per_agent"), ("a2c", "shared"), ("recurrent_ppo", "shared"),
                         ("recurrent_ppo", "per_agent"), ("maskable_ppo", "per_agent")])  # fmt: skip
IN_TURNS = ALGOS.filter(lambda algo: algo[0] != "maskable_ppo")


def check_rollouts(made: Any, plans: Any, algo: tuple[str, str], n_steps: int, rollouts: int, share: float) -> int:
    masked = {"masked": True} if algo[0] == "maskable_ppo" else {}
    env = make_vec_env(made, n_envs=len(plans), seed=0, plans=plans, **masked)
    rewrites = train_rollouts(env, *algo, n_steps, rollouts, share)
    shown = assert_shown_as_logged(rewrites)
    assert shown >= rewrites.checked
    if share == 0:
        assert shown == rewrites.checked
    logged = [own for e in range(env.num_envs) for agent in env.agents for own in rewrites.log.transitions(e, agent)]
    assert shown == sum(own.end is not None for own in logged), "all that were over"
    return shown


# --- Replay buffers ---------------------------------------------------------------------------------------------------

REPLAYS: Mapping[str, Mapping[str, Any]] = {
    "plain": {}, "n_step": {"n_steps": 3}, "compact": {
        "optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}
    },
}  # fmt: skip


def train_replay(env: Any, kind: str, policies: str, env_steps: int, share: float) -> Rewrites:
    log = Log(env)
    spec = PolicySpec("dqn", gamma=GAMMA, buffer_size=4000, learning_starts=10_000, train_freq=2, policy_kwargs=NET,
                      **REPLAYS[kind])  # fmt: skip
    names = ["shared"] if policies == "shared" else env.agents
    mapping = None if policies == "shared" else {agent: agent for agent in env.agents}
    made = MultiAgentAlgorithm(env, dict.fromkeys(names, spec), mapping, n_steps=env_steps, seed=0, device="cpu")
    rewrites = Rewrites(log, share)
    made.learn(env_steps * env.num_envs, rewrites)
    env.close()
    return rewrites


def kept_samples(rewrites: Rewrites, who: Any, n_steps: int, time_limits: bool) -> list[Any]:
    """What is to be drawn of an agent in an env: (observation, action, return, next observation, done, discount)."""
    logged = {own.begin: own for own in rewrites.log.transitions(*who)}
    samples = []
    for trajectory in rewrites.left.get(who, []):
        for number in np.flatnonzero(trajectory.keep).tolist():
            after = trajectory.keep[number : number + n_steps].tolist()
            last = number + (after.index(False) if False in after else len(after)) - 1
            span = np.arange(last - number + 1)
            own, is_last = logged[int(trajectory.steps[last])], last == len(trajectory) - 1
            over = is_last and own.ended and (own.terminated or not time_limits)
            of_end = own.final if own.ended else own.following
            seen_next = of_end if is_last else trajectory.observations[last + 1]
            paid = float((trajectory.rewards[number : last + 1] * GAMMA**span).sum())
            action = int(trajectory.actions[number].item())
            samples.append((trajectory.observations[number], action, paid, seen_next, over, GAMMA ** (len(span))))
    return samples


def check_replays(made: Any, plans: Any, policies: str, kind: str, env_steps: int, share: float) -> int:
    env = make_vec_env(made, n_envs=len(plans), seed=0, plans=plans)
    rewrites = train_replay(env, kind, policies, env_steps, share)
    shown = assert_shown_as_logged(rewrites)
    for policy_id, policy in rewrites.algorithm.policies.items():
        mine = [agent for agent in env.agents if rewrites.algorithm.policy_of[agent] == policy_id]
        everyone = [(e, agent) for e in range(env.num_envs) for agent in mine]
        expected = [kept_samples(rewrites, who, 3 if kind == "n_step" else 1, kind != "compact") for who in everyone]
        buffer: Any = policy.replay_buffer
        assert buffer.num_transitions - (buffer.gaps.sum() if kind == "compact" else 0) == sum(map(len, expected))
        if kind == "plain":  # rows are mixed
            places = np.divmod(np.arange(buffer.num_transitions), buffer.n_envs)
            buffered = [(buffer.observations[p], int(buffer.actions[p].item()), buffer.rewards[p],
                         buffer.next_observations[p], bool(buffer.dones[p] * (1 - buffer.timeouts[p])), GAMMA)
                        for p in zip(*places, strict=True)]  # fmt: skip
            assert_same_samples(sorted(buffered, key=repr), sorted(itertools.chain(*expected), key=repr))
            continue
        for row, samples in enumerate(expected):
            lines = np.arange(buffer.counts[row])
            lines = lines[~buffer.gaps[lines, row]] if kind == "compact" else lines
            drawn = buffer._samples_at(lines, np.full(len(lines), row), None) if len(lines) else None
            assert_same_samples([] if drawn is None else listed(drawn), samples)
    return shown


def listed(drawn: Any) -> list[Any]:
    discounts = np.full(len(drawn.dones), GAMMA) if drawn.discounts is None else drawn.discounts.numpy().reshape(-1)
    columns = (drawn.observations, drawn.actions, drawn.rewards, drawn.next_observations, drawn.dones)
    seen, actions, rewards, following, dones = (each.numpy() for each in columns)
    flat = actions.reshape(-1).tolist(), rewards.reshape(-1), following, (dones.reshape(-1) > 0).tolist(), discounts
    return list(zip(seen, *flat, strict=True))


def assert_same_samples(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one[0], other[0])
        assert (one[1], one[4]) == (other[1], other[4])
        np.testing.assert_allclose(one[2], other[2], rtol=1e-4, atol=1e-4)
        if not other[4]:  # of a terminated agent, no target depends on it
            np.testing.assert_allclose(one[3], other[3])
        assert one[5] == pytest.approx(other[5])


REPLAYED = {"policies": st.sampled_from(["shared", "per_agent"]), "kind": st.sampled_from(list(REPLAYS)),
            "env_steps": st.integers(6, 40), "share": st.sampled_from([0.0, 0.4, 0.8])}  # fmt: skip


# --- Clients that step their envs at their own pace -------------------------------------------------------------------


def check_clients(plans: Any, algo: str, slots: int, leaves: set[int], share: float) -> int:
    envs = [Telling(plans=plans, env_index=index) for index in range(len(plans))]
    vec_env = external(envs[0], slots)
    waits = [partial(lambda seconds, _: threading.Event().wait(seconds), 0.0005 * index) for index in range(len(envs))]
    clients = [Simulator(env, vec_env, wait, leaves) for env, wait in zip(envs, waits, strict=True)]
    for client in clients:
        client.start()
    try:
        if algo == "dqn":
            rewrites = train_replay(vec_env, "n_step", "shared", 12, share)
        else:
            rewrites = train_rollouts(vec_env, algo, "shared", 6, 3, share)
    finally:
        vec_env.close()
    for client in clients:
        client.join(20)
        assert not client.is_alive()
    shown = assert_shown_as_logged(rewrites)
    if algo == "dqn":
        buffer = rewrites.algorithm.policies["shared"].replay_buffer
        for row in range(buffer.n_envs):
            who = divmod(row, len(vec_env.agents))
            samples = kept_samples(rewrites, (who[0], vec_env.agents[who[1]]), 3, True)
            lines = np.arange(buffer.counts[row])
            assert_same_samples(
                listed(buffer._samples_at(lines, np.full(len(lines), row), None)) if len(lines) else [], samples
            )
    elif share == 0:
        assert shown == rewrites.checked
    return shown


CLIENTS = {"algo": st.sampled_from(["ppo", "recurrent_ppo", "dqn"]), "slots": st.integers(1, 4),
           "leaves": st.sets(st.integers(1, 20), max_size=4), "share": st.sampled_from([0.0, 0.4])}  # fmt: skip


# --- By hand ----------------------------------------------------------------------------------------------------------


class Changes(MultiAgentCallback):
    """Does something to each trajectory, and keeps it."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change, self.shown = change, list[Trajectory]()

    def on_trajectory(self, trajectory: Trajectory) -> None:
        self.change(trajectory)
        self.shown.append(trajectory)


class Goals(ScriptedEnv):
    """Episodes of 4 steps of an agent that is to get to 100."""

    def __init__(self) -> None:
        super().__init__({"a": (4, "terminated")})
        place = spaces.Box(-1000, 1000, (1,))
        self._observation_space: Any = spaces.Dict(
            dict.fromkeys(("observation", "achieved_goal", "desired_goal"), place)
        )

    def observation(self, agent: str) -> Any:
        place = np.array([self.step_count], np.float32)
        return {"observation": place, "achieved_goal": place, "desired_goal": np.array([100], np.float32)}

    def compute_reward(self, agent: str, achieved: Any, desired: Any, infos: Any) -> Any:
        return (achieved == desired)[:, 0] * 1.0


def in_turns() -> ScriptedEnv:
    return ScriptedEnv({"a": (9, "truncated"), "b": (9, "truncated")}, skips={"b": [2, 3, 4, 7, 8]})


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_weights_are_those_of_stock_sb3_with_the_rewards_that_the_hook_leaves(algo: str) -> None:
    class Halved(VecEnvWrapper):
        def reset(self) -> Any:
            return self.venv.reset()

        def step_wait(self) -> Any:
            seen, rewards, *rest = self.venv.step_wait()
            return seen, rewards / 2, *rest

    def halve(trajectory: Trajectory) -> None:
        trajectory.rewards /= 2

    plans = [[({"a": (5, "truncated")}, {"a": 0}), ({"a": (4, "terminated")}, {"a": 0})]]
    more: Any = {"n_steps": 16, "batch_size": 16, "n_epochs": 2} if algo == "ppo" else {"learning_starts": 30}
    more = {**more, "policy_kwargs": {"net_arch": [4]}, "seed": 3, "device": "cpu"}
    env = Halved(make_vec_env(NoisyEnv, 1, seed=1, plans=plans).as_sb3_vec_env())
    stock: Any = {"ppo": stable_baselines3.PPO, "dqn": stable_baselines3.DQN}[algo]("MlpPolicy", env, **more)
    stock.learn(64 if algo == "ppo" else 27)
    changes = Changes(halve)
    env_steps = {} if algo == "ppo" else {"n_steps": 27}
    spec = PolicySpec(algo, **{name: value for name, value in more.items() if name not in ("seed", "device")})
    env = make_vec_env(NoisyEnv, 1, seed=1, plans=plans)
    made = MultiAgentAlgorithm(env, {"p": spec}, seed=3, device="cpu", update_path="torch", **env_steps)
    made.learn(64 if algo == "ppo" else 27, changes)
    assert {each.truncated for each in changes.shown} == {True, False}
    own: Any = made.policies["p"]
    if algo == "dqn":  # three pairs of episodes are over, and all of them are in the buffer
        for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
            assert np.array_equal(*(getattr(each.replay_buffer, name)[:27] for each in (own, stock)))
        return
    for one, other in zip(own.policy.state_dict().values(), stock.policy.state_dict().values(), strict=True):
        assert th.equal(one, other)


def test_hindsight_learns_from_what_is_left_of_an_episode() -> None:
    goals = {"replay_buffer_class": "HerReplayBuffer", "replay_buffer_kwargs": {"goal_selection_strategy": "final"}}
    spec = PolicySpec("dqn", "MultiInputPolicy", learning_starts=4, buffer_size=40, batch_size=4, **goals)
    for dropped, lengths in ((-1, [3, 3, 3] * 2), (1, [1, 2, 2] * 2)):  # without their end; in two pieces

        def drop(trajectory: Trajectory, dropped: int = dropped) -> None:
            trajectory.keep[dropped] = False

        made = MultiAgentAlgorithm(make_vec_env(Goals), {"p": spec}, n_steps=8, seed=0, device="cpu")
        made.learn(8, Changes(drop))
        buffer: Any = made.policies["p"].replay_buffer
        assert buffer.can_sample
        assert buffer.ep_length[:6, 0].tolist() == lengths
        assert bool(buffer.sample(50).dones.any()) == (dropped == 1)  # a dropped end is no termination


def test_a_state_follows_from_nothing_that_was_dropped() -> None:
    def drop(trajectory: Trajectory) -> None:
        trajectory.keep[[0, 2]] = False

    env = make_vec_env(ScriptedEnv, 2, seed=0, script={"a": (5, "terminated")})
    spec = PolicySpec("recurrent_ppo", n_steps=10, batch_size=100, n_epochs=1, policy_kwargs={"lstm_hidden_size": 8})
    made = MultiAgentAlgorithm(env, {"p": spec}, seed=0, device="cpu")
    policy: Any = made.policies["p"].policy
    policy.action_net.weight.data.mul_(100)  # so that actions depend on the state
    results = []
    changes = Changes(drop)
    changes.on_iteration_end = lambda result: results.append(result) or True  # type: ignore[method-assign]
    made.learn(20, changes)
    # The first update finds the log-probabilities of the actions that were played, in the states in which they were.
    assert abs(results[0]["learners"]["p"]["mean_kl_loss"]) < 1e-6


def test_steps_are_counted_on_after_a_resume_and_waiting_agents_are_left_out(tmp_path: Path, caplog: Any) -> None:
    def trained(env: Any) -> MultiAgentAlgorithm:
        made = MultiAgentAlgorithm(env, "per_agent", n_steps=3, batch_size=3, seed=0, device="cpu")
        return made.learn(3 * env.num_envs, Changes(lambda trajectory: None))

    for make, left_out, first in ((ScriptedEnv, None, 3), (in_turns, "on_trajectory has yet to see", 3)):
        made = trained(make_vec_env(make, 2, seed=0))
        assert str(made.get_state()[0]["env"]["left_out"]).startswith(str(left_out))
        made.save(tmp_path / make.__name__)
        assert caplog.text.count("begins new ones") == (left_out is not None)  # once, however many states are made
        resumed = MultiAgentAlgorithm.load(tmp_path / make.__name__, make_vec_env(make, 2, seed=0), device="cpu")
        changes = Changes(lambda trajectory: None)
        resumed.learn(6, changes, reset_num_timesteps=False)
        assert min(int(each.steps[0]) for each in changes.shown) == first


def test_a_hook_does_not_see_episodes_that_were_under_way_before_it() -> None:
    for algo in ("a2c", "dqn"):
        spec = PolicySpec(algo, **({"n_steps": 4} if algo == "a2c" else {"learning_starts": 100}))
        env = make_vec_env(ScriptedEnv, 1, seed=0, script={"a": (5, "truncated")})
        made = MultiAgentAlgorithm(env, {"p": spec}, n_steps=2, seed=0, device="cpu").learn(2)
        changes = Changes(lambda trajectory: trajectory.keep.fill(False))
        made.learn(18, changes, reset_num_timesteps=False)
        shown = [each.steps.tolist() for each in changes.shown]
        assert shown[0][0] == (4 if algo == "a2c" else 5)
        buffer: Any = made.policies["p"].replay_buffer if algo == "dqn" else None
        assert buffer is None or buffer.num_transitions == 5


# --- All of it --------------------------------------------------------------------------------------------------------

SOME_PLANS = {"plans": env_plans(max_agents=3)}
PROPERTIES: Mapping[str, tuple[Any, Mapping[str, Any], int]] = {  # check, its arguments, examples in the short test
    "rollouts": (partial(check_rollouts, Telling), {**SOME_PLANS, "algo": ALGOS, **ROLLOUTS}, 6),
    "rollouts in turns": (
        partial(check_rollouts, TurnEnv),
        {"plans": turn_env_plans(), "algo": IN_TURNS, **ROLLOUTS},
        4,
    ),
    "replay": (partial(check_replays, Telling), {**SOME_PLANS, **REPLAYED}, 8),
    "replay in turns": (partial(check_replays, TurnEnv), {"plans": turn_env_plans(), **REPLAYED}, 6),
    "clients": (check_clients, {"plans": env_plans(max_agents=2), **CLIENTS}, 2),
}


def require_property(name: str, examples: int, **more: Any) -> None:
    check, strategies, _ = PROPERTIES[name]

    @settings(max_examples=examples, **{**QUICK, **more})
    @given(**strategies)
    def holds(**arguments: Any) -> None:
        check(**arguments)

    holds()


@pytest.mark.parametrize("name", PROPERTIES)
def test_trajectories_are_those_of_the_envs_and_what_is_learned_is_what_the_hook_left(name: str) -> None:
    require_property(name, PROPERTIES[name][2])


@pytest.mark.proof
@pytest.mark.parametrize("name", PROPERTIES)
def test_many_trajectories_are_those_of_the_envs(name: str) -> None:
    require_property(name, 400)


# Function, what its source says, and a mistake instead.
FAULTS: Mapping[str, tuple[str, str, str]] = {
    "until the next rollout": (
        "TrajectoryRewriter._rewrite", "turns[-1].end if turns[-1].end >= 0 else next_step", "next_step"
    ),
    "bootstrap shown": ("TrajectoryRewriter._rewrite", "rewards=paid.copy()", "rewards=buffer.rewards[places]"),
    "bootstrap dropped": ("TrajectoryRewriter._rewrite", "rewards + bootstrap)", "rewards)"),
    "no value of what is dropped": ("TrajectoryRewriter._rewrite", "np.float32(buffer.gamma) *", "0 *"),
    "returns run over gaps": ("TrajectoryRewriter._rewrite", "~keep[:-1]], row] = True", "~keep[:-1]], row] = False"),
    "returns run on after a dropped end": ("TrajectoryRewriter.rewrite", "stops[row] = True", "pass"),
    "steps of the first env": (
        "TrajectoryRewriter.before_step", "self._envs[row // agents].number", "self._envs[0].number"
    ),
    "carried ones begin anew": ("TrajectoryRewriter.begin_rollout", "turns[-1:] if", "[] if"),
    "carried ones are forgotten": ("TrajectoryRewriter.rewrite", "turns[-1:] if carried is not None", "[] if None"),
    "gaps are joined": ("TrajectoryRewriter._show_held", "experience.break_returns(of_row)", "pass"),
    "terminated for truncated": (
        "TrajectoryRewriter.after_step", "rows.of_agents(step.truncated)", "rows.of_agents(step.terminated)"
    ),
    "ends are not noted": ("TrajectoryRewriter.after_step", "= number, True", "= number, False"),
    "first info": ("TrajectoryRewriter._made", "each[-1]", "each[0]"),
    "others act on after their end": ("TrajectoryRewriter.of_other", "next((n + 1 for", "next((end for"),
    "steps of all envs": (
        "TrajectoryRewriter.after_step", "np.flatnonzero(step.stepped).tolist()", "range(len(self._envs))"
    ),
    "actions of the latest step": ("TrajectoryRewriter.before_step", "env.acted is None or any(acting)", "True"),
    "given up, not shown": ("TrajectoryRewriter.give_up", "if noted.held.get(row):", "if False:"),
    "bootstrap of what is given up shown": ("TrajectoryRewriter.give_up", "elif lost is not None and", "elif 0 and"),
    "forgotten too early": ("_EnvSteps.forget", "< needed", "<= needed"),
    "old observations": ("TrajectoryRewriter._show_held", "own[:-1] = given[1:]", "pass"),
    "truncated unknown": ("TrajectoryRewriter.shown", '"truncated": turns[-1].truncated', '"truncated": False'),
}  # fmt: skip


def test_faults_can_be_planted() -> None:
    sources = {name: inspect.getsource(attrgetter(where)(rewriting)) for name, (where, *_) in FAULTS.items()}
    assert [name for name, (_, right, _) in FAULTS.items() if sources[name].count(right) != 1] == []


@pytest.mark.proof
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, right, wrong = FAULTS[fault]
    function = attrgetter(where)(rewriting)
    source = textwrap.dedent(inspect.getsource(function)).removeprefix("@override\n")
    assert source.count(right) == 1
    space = dict(vars(rewriting))
    exec(source.replace(right, wrong), space)
    monkeypatch.setattr(function, "__code__", space[function.__name__].__code__)
    found = []
    for name in PROPERTIES:
        try:
            require_property(name, 30)
        except Exception:
            found.append(name)
    print(f"FAULT {fault}: {found}")
    assert found
