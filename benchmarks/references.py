"""Play the envs of the presets with random actions, with simple rules and with what is known to be best.

    python benchmarks/references.py [--envs ID,ID] [--random-in ID,ID] [--episodes 200] [--seconds 60] [--json FILE]

A return means little by itself: this prints the returns that a trained policy should be compared with, and their 95 %
confidence intervals. A rule sees what the agents observe; "informed" ones also see what the other agent observes.

`--random-in` plays only random actions, in envs of any kind; `all` are those of `envs.py`. This installs the packages:

    pip install 'pettingzoo[classic,butterfly,sisl]' mpe2 magent2 'gymnasium[box2d]'
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import permutations
from typing import Any

import numpy as np
from command_line import add_count, add_names, parser
from envs import all_ids
from gymnasium import spaces
from measure import Report, Setting, print_table, say
from waterworld_policies import chase as chase_food

from marl_sb3 import make_vec_env
from marl_sb3.core.metrics.statistics import sample_stats
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import MarlSb3Error
from marl_sb3.types import AgentID, Array

SETTING = Setting(
    what="returns of random actions and of rules written by hand",
    hyperparameters={},
    threads="1 thread",
    changes={"A": "batched envs, where an env has a batched twin"},
    packages=("marl_sb3", "numpy", "pettingzoo", "gymnasium"),
)
N_ENVS = 10

Seen = Mapping[AgentID, Array]  # agent -> its observations, (E, ...)
Rule = Callable[[Seen, np.random.Generator], Mapping[AgentID, Array]]  # -> agent -> its actions, (E, ...)


def for_each(act: Callable[[Array], Array]) -> Rule:
    """The rule of agents that all do the same with what they see."""
    return lambda seen, rng: {agent: act(each) for agent, each in seen.items()}


# --- CartPole, Pendulum, Waterworld, Multiwalker ---------------------------------------------------------------------


def push_under(seen: Array) -> Array:
    """CartPole: push to the side to which the pole falls."""
    return (seen[:, 2] + 0.5 * seen[:, 3] > 0).astype(np.int64)


def swing_up(seen: Array) -> Array:
    """Pendulum: add energy until the energy is that of standing upright, then balance there."""
    cosine, sine, speed = seen.T
    missing = 5 * (1 - cosine) - speed**2 / 6 > 0  # m g l / 2 = 5, m l^2 / 6 = 1 / 6
    swung = np.where(missing, 2.0, -2.0) * np.where(speed < 0, -1.0, 1.0)
    held = -10 * np.arctan2(sine, cosine) - 2 * speed
    return np.where(cosine > 0.9, held, swung).clip(-2, 2)[:, None].astype(np.float32)


def eat(seen: Seen, rng: np.random.Generator) -> Mapping[AgentID, Array]:
    """Waterworld: swim to the nearest food that is sensed."""
    return {agent: chase_food(each, (each.shape[1] - 2) // 8, rng) for agent, each in seen.items()}


def stand(seen: Array) -> Array:
    """Multiwalker: no torque at any joint."""
    return np.zeros((len(seen), 4), dtype=np.float32)


# --- The arena -------------------------------------------------------------------------------------------------------

UP, RIGHT, DOWN, LEFT = range(4)


def circuit(height: int = 10, width: int = 10) -> Array:
    """The action in each cell of a walk that enters every cell once and ends where it began; for an even height.

    It goes to and fro through the rows, but for the first column, through which it comes back.
    """
    rows, columns = np.divmod(np.arange(height * width), width)
    is_even, is_last = rows % 2 == 0, rows == height - 1
    forth = np.where(columns < width - 1, RIGHT, DOWN)
    back = np.where((columns > 1) | is_last, LEFT, DOWN)
    return np.where((columns == 0) & (rows > 0), UP, np.where(is_even, forth, back))


def walk_round(seen: Array) -> Array:
    """Both agents walk the same round and never meet: a new field in each step, 1 - 0.1, the most that a step pays."""
    return circuit()[seen[:, 0]]


# --- Particles: mpe2 -------------------------------------------------------------------------------------------------

COAST = 0.4  # how far a particle glides that is not pushed, per unit of its speed: 0.1 * (1 + 0.75 + 0.75^2 + ...)
PUSHES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])  # by action


def go(target: Array, speed: Array) -> Array:
    """The push along the axis on which a gliding particle would miss the target more, both (E, 2); none below 0.1."""
    miss = target - COAST * speed
    axis = np.abs(miss).argmax(axis=1)
    amount = miss[np.arange(len(miss)), axis]
    return np.where(np.abs(amount) < 0.1, 0, 1 + 2 * axis + (amount > 0))


def spread(seen: Array) -> Array:
    """simple_spread: go to the landmark that is one's own if three agents walk as little as possible."""
    landmarks, others = (seen[:, first : first + n].reshape(len(seen), -1, 2) for first, n in ((4, 6), (10, 4)))
    agents = np.concatenate((np.zeros((len(seen), 1, 2)), others), axis=1)
    distances = np.linalg.norm(agents[:, :, None] - landmarks[:, None], axis=-1)  # (E, agents, landmarks)
    orders = np.array(list(permutations(range(3))))
    best = orders[distances[:, range(3), orders].sum(axis=-1).argmin(axis=1), 0]
    return go(landmarks[np.arange(len(seen)), best], seen[:, :2])


def chase(seen: Seen, rng: np.random.Generator) -> Mapping[AgentID, Array]:
    """simple_tag: adversaries swim to the prey, which leaves the nearest of them and the border as far as it can."""
    return {
        agent: flee(each) if agent == "agent_0" else go(each[:, 12:14], each[:, :2]) for agent, each in seen.items()
    }


def flee(seen: Array) -> Array:
    """simple_tag: the push of the prey."""
    ahead = COAST * (seen[:, None, :2] + 0.4 * PUSHES)  # (E, pushes, 2): how far the prey glides
    others = seen[:, 8:14].reshape(len(seen), 1, 3, 2) - ahead[:, :, None]
    beyond = np.maximum(np.abs(seen[:, None, 2:4] + ahead) - 0.9, 0).sum(axis=-1)
    room = np.linalg.norm(others, axis=-1).min(axis=-1) - 10 * beyond
    return room.argmax(axis=1)


def landmarks_of(seen: Array) -> Array:
    """The places of the three landmarks relative to an agent with a voice or an ear: (E, 3, 2)."""
    return seen[:, 2:8].reshape(-1, 3, 2)


def wait_between(seen: Seen, rng: np.random.Generator) -> Mapping[AgentID, Array]:
    """simple_speaker_listener, simple_reference: say nothing, hear nothing, go to the mean of all landmarks."""
    return _go_to({agent: landmarks_of(each).mean(axis=1) for agent, each in seen.items() if agent != SPEAKER}, seen)


def go_where_asked(seen: Seen, rng: np.random.Generator) -> Mapping[AgentID, Array]:
    """The same games: know what the other agent wants, as if it had said so, and go there."""
    other = dict(zip(seen, reversed(list(seen)), strict=True))
    targets = {}
    for agent, each in seen.items():
        if agent != SPEAKER:
            colour = seen[other[agent]][:, -3:] if SPEAKER in seen else seen[other[agent]][:, 8:11]
            targets[agent] = landmarks_of(each)[np.arange(len(each)), colour.argmax(axis=1)]
    return _go_to(targets, seen)


SPEAKER = "speaker_0"


def _go_to(targets: Mapping[AgentID, Array], seen: Seen) -> Mapping[AgentID, Array]:
    moves = {agent: go(target, seen[agent][:, :2]) for agent, target in targets.items()}
    return {agent: moves.get(agent, np.zeros(len(each), dtype=np.int64)) for agent, each in seen.items()}


# --- Pursuit ---------------------------------------------------------------------------------------------------------


def surround(seen: Seen, rng: np.random.Generator) -> Mapping[AgentID, Array]:
    """Pursuit: go to the nearest free cell beside an evader and wait there; without any in sight, anywhere."""
    down, across = (offset.reshape(-1) for offset in np.meshgrid(np.arange(-3, 4), np.arange(-3, 4), indexing="ij"))
    moves = {}
    for agent, each in seen.items():
        walls, pursuers, evaders = np.moveaxis(each, -1, 0) > 0  # (E, 7, 7)
        pursuers[:, 3, 3] = False  # itself
        around = np.pad(evaders, ((0, 0), (1, 1), (1, 1)))
        beside = around[:, :-2, 1:-1] | around[:, 2:, 1:-1] | around[:, 1:-1, :-2] | around[:, 1:-1, 2:]
        is_free = (beside & ~walls & ~pursuers).reshape(len(each), -1)
        distances = np.abs(across) + np.abs(down) + 0.5 * rng.random(is_free.shape)
        nearest = np.where(is_free, distances, 99.0).argmin(axis=1)
        dx, dy = across[nearest], down[nearest]
        towards = np.where(np.abs(dx) >= np.abs(dy), np.where(dx > 0, 1, 0), np.where(dy > 0, 2, 3))
        towards[(dx == 0) & (dy == 0)] = 4
        moves[agent] = np.where(is_free.any(axis=1), towards, rng.integers(4, size=len(each)))
    return moves


RULES: Mapping[str, Mapping[str, Rule]] = {
    "CartPole-v1": {"pushes to where the pole falls": for_each(push_under)},
    "Pendulum-v1": {"swings up, then balances": for_each(swing_up)},
    "arena": {"best: both walk the same round": for_each(walk_round)},
    "waterworld": {"swim to the nearest food": eat},
    "mpe2/simple_spread-v3": {"a landmark each": for_each(spread)},
    "mpe2/simple_tag-v3": {"chase and flee": chase},
    "mpe2/simple_speaker_listener-v4": {"deaf": wait_between, "informed": go_where_asked},
    "mpe2/simple_reference-v3": {"deaf": wait_between, "informed": go_where_asked},
    "sisl/pursuit-v5": {"surround the nearest evader": surround},
    "sisl/multiwalker-v9": {"no torque": for_each(stand)},
}


# --- Playing ---------------------------------------------------------------------------------------------------------


def random_actions(space: spaces.Space[Any], shape: tuple[int, ...], masks: Array | None, rng: Any) -> Array:
    """Draw an action for each row, a legal one where there are masks: (*shape, *space.shape)."""
    if masks is not None:
        return np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=-1)
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=shape)
    assert isinstance(space, spaces.Box)
    return rng.uniform(space.low, space.high, (*shape, *space.shape)).astype(space.dtype)


def actions_of(rule: Rule | None, env: MultiAgentVecEnv, step: VecStep, rng: np.random.Generator) -> list[Array]:
    """The actions of all agents, for each group; None: random ones."""
    if rule is None:
        masks = step.action_masks
        shapes = [(env.num_envs, len(group.agents)) for group in env.groups]
        return [
            random_actions(*each, rng) for each in zip([g.action_space for g in env.groups], shapes, masks, strict=True)
        ]
    seen: dict[AgentID, Array] = {}
    for group, observations in zip(env.groups, step.observations, strict=True):
        seen.update({agent: observations[:, column] for column, agent in enumerate(group.agents)})
    chosen = rule({agent: seen[agent] for agent in env.agents}, rng)
    return [np.stack([chosen[agent] for agent in group.agents], axis=1) for group in env.groups]


def play(env_id: str, rule: Rule | None, episodes: int, seconds: float, seed: int = 0) -> Mapping[AgentID, Array]:
    """Return each agent's returns; rounds of an episode in each env end after these seconds."""
    begun_s, rng, rounds = time.monotonic(), np.random.default_rng(seed), []
    n_envs = min(N_ENVS, episodes)
    with closing(make_vec_env(env_id, n_envs=n_envs, seed=seed)) as env:
        for _ in range(math.ceil(episodes / n_envs)):
            rounds.append(one_round(env, rule, rng))
            if time.monotonic() - begun_s > seconds:
                break
        return dict(zip(env.agents, np.concatenate(rounds).T, strict=True))


def one_round(env: MultiAgentVecEnv, rule: Rule | None, rng: np.random.Generator) -> Array:
    """Play an episode in each env: (E, A) returns. Envs that end early go on unseen."""
    step, returns = env.reset(), np.zeros((env.num_envs, len(env.agents)))
    running = np.ones(env.num_envs, dtype=np.bool_)
    while running.any():
        step = env.step(actions_of(rule, env, step, rng))
        returns += step.rewards * running[:, None]
        running &= ~step.episode_done
    return returns


def by_kind(returns: Mapping[AgentID, Array]) -> dict[str, Array]:
    """The mean returns of agents whose names differ in a number, where there are more than two agents, and the sum."""
    kinds: dict[str, list[Array]] = {}
    for agent, each in returns.items():
        kinds.setdefault(re.sub(r"_?\d+$", "", agent) if len(returns) > 2 else agent, []).append(each)
    means = {kind: np.mean(each, axis=0) for kind, each in kinds.items()}
    return means if len(returns) == 1 else {**means, "sum": np.sum(list(returns.values()), axis=0)}


def words_for(found: Mapping[str, Any]) -> str:
    """Write a mean and its interval."""
    low, high = found["ci95"] or (math.nan, math.nan)
    return f"{found['mean']:.2f} ({low:.2f} to {high:.2f})"


def main(argv: Sequence[str] | None = None) -> None:
    """Play, and print a table with a row for each player and kind of agent."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--envs", RULES, metavar="ID,...")
    options.add_argument("--random-in", metavar="ID,...", help="only random actions, in these envs or in `all`")
    add_count(options, "--episodes", 200, "episodes of each player, rounded up to a multiple of 10")
    options.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of each player; default: 60")
    arguments = options.parse_args(argv)
    players: dict[str, Mapping[str, Rule]] = {env_id: RULES[env_id] for env_id in arguments.envs}
    if arguments.random_in:
        named = all_ids() if arguments.random_in == "all" else arguments.random_in.split(",")
        players = {env_id: {} for env_id in named}
    results: dict[str, Any] = {}
    rows: list[list[str]] = []
    for env_id, rules in players.items():
        results[env_id] = {}
        for player, rule in {"random": None, **rules}.items():
            say(f"{env_id}: {player}")
            try:
                returns = by_kind(play(env_id, rule, arguments.episodes, arguments.seconds))
            except MarlSb3Error as error:  # its package is not installed, say
                rows.append([env_id, player, "", "", " ".join(str(error).split())[:120]])
                continue
            found = {kind: asdict(sample_stats(each.tolist())) for kind, each in returns.items()}
            results[env_id][player] = found
            rows += [[env_id, player, str(each["n"]), kind, words_for(each)] for kind, each in found.items()]
    SETTING.print()
    print_table(["env", "player", "episodes", "agent", "mean return (95 % interval)"], rows)
    Report("references", SETTING, results).write(arguments.json)


if __name__ == "__main__":
    main()
