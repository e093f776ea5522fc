"""What a script of SB3 or a tutorial of PettingZoo gains when it moves to marl_sb3: the tables of docs/coming_from.

    python benchmarks/newcomers.py [--only ppo,sac,...] [--repeats 3] [--seconds 5] [--json FILE]
    python benchmarks/newcomers.py --tutorials waterworld,knights,connect_four [--repeats 3] [--json FILE]

Scripts: env steps per wall-clock second of `learn`, rollouts and updates. Four sides take turns in one process: stock
SB3 on its vec env; marl_sb3's class in its place; that class on `make_vec_env(...).as_sb3_vec_env()`; a
`MultiAgentAlgorithm`. The first call of `learn` of each turn is not counted: kernels are compiled or loaded in it. A
dash is a side without a counterpart of the script, whose wrapper or callback is another thing there.

Tutorials: PettingZoo's tutorials of SB3, rewritten, and `marl_sb3.train` with its defaults or preset train for as many
env steps; turn N has seed N. Both are then evaluated by the same loop, in 100 episodes, with the most likely actions.
Seconds are those of the training with all that the first one compiles or loads. `knights` needs pygame and pymunk.
Waterworld is marl_sb3's on both sides: PettingZoo has none since version 1.26.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import sb3_contrib
import stable_baselines3
import supersuit
from command_line import add_names, parser
from measure import Comparison, Report, Setting, number, say, take_turns
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env as make_sb3_vec_env
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn
from trainings import one_torch_thread

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env

SCRIPTS = Setting(
    what="scripts of SB3 with its default hyperparameters, but for the length of rollouts",
    hyperparameters={},
    threads="1 for PyTorch",
    changes={"B": "compiled kernels act and compute the updates of plain MLPs", "C": "envs that step as arrays"},
    packages=("marl_sb3", "stable-baselines3", "sb3-contrib", "torch", "numpy", "gymnasium"),
)
TUTORIALS = Setting(
    what="PettingZoo's tutorials of SB3, as many env steps with marl_sb3",
    hyperparameters={},
    threads="1 for PyTorch",
    changes={"D": "other hyperparameters; agents that have ended are not trained; both players of a game are paid"},
    packages=("marl_sb3", "stable-baselines3", "sb3-contrib", "pettingzoo", "supersuit", "torch", "numpy"),
)
STOCK, IN_PLACE, ROWS, JOINT = "SB3", "marl_sb3's class", "on our envs", "MultiAgentAlgorithm"


def print_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table for a page."""
    for cells in (header, ["---"] * len(header), *rows):
        print(f"| {' | '.join(cells)} |")


# --- Scripts of SB3 --------------------------------------------------------------------------------------------------


class OwnFeatures(BaseFeaturesExtractor):
    """A features extractor of the user's."""

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__(space, features_dim=32)
        self.layers = nn.Sequential(nn.Linear(space.shape[0], 32), nn.ELU())

    def forward(self, observations: Any) -> Any:
        """Return the features, (batch, 32)."""
        return self.layers(observations)


def images() -> gymnasium.Env[Any, Any]:
    """An env of random images, 36 x 36 x 3."""
    return FakeImageEnv(screen_height=36, screen_width=36, n_channels=3, channel_first=False, discrete=True)


@dataclass(frozen=True)
class Script:
    """A script, whose class is replaced."""

    what: str  # in the table
    name: str  # of the class
    env: Any
    policy: str = "MlpPolicy"
    n_envs: int = 8
    settings: Mapping[str, Any] = field(default_factory=lambda: {"n_steps": 256})
    wrap: Callable[[Any], Any] | None = None  # the vec env
    callback: Callable[[], Any] | None = None
    features: type[BaseFeaturesExtractor] | None = None  # None: SB3's

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the class beside the policy and the env."""
        own = {} if self.features is None else {"policy_kwargs": {"features_extractor_class": self.features}}
        return {**self.settings, **own}

    @property
    def stock(self) -> Any:
        """SB3's class, or that of sb3-contrib."""
        return getattr(stable_baselines3, self.name, None) or getattr(sb3_contrib, self.name)

    @property
    def ours(self) -> Any:
        """The class in its place."""
        return getattr(marl_sb3, self.name)

    @property
    def chunk(self) -> int:
        """Env steps of a call of `learn`."""
        return self.settings["n_steps"] * self.n_envs if "n_steps" in self.settings else 250


def evaluated() -> EvalCallback:
    """An evaluation of one episode every 512 steps of all envs."""
    return EvalCallback(make_sb3_vec_env("CartPole-v1"), eval_freq=512, n_eval_episodes=1, verbose=0)


REPLAY = {"learning_starts": 100}
CASES: Mapping[str, Script] = {
    "ppo": Script("PPO, CartPole-v1", "PPO", "CartPole-v1"),
    "ppo_callback": Script("the same with SB3's `EvalCallback`", "PPO", "CartPole-v1", callback=evaluated),
    "ppo_continuous": Script("PPO, Pendulum-v1", "PPO", "Pendulum-v1"),
    "ppo_normalized": Script("the same in SB3's `VecNormalize`", "PPO", "Pendulum-v1", wrap=VecNormalize),
    "a2c": Script("A2C, CartPole-v1", "A2C", "CartPole-v1", settings={"n_steps": 5}),
    "recurrent_ppo": Script(
        "RecurrentPPO, CartPole-v1", "RecurrentPPO", "CartPole-v1", "MlpLstmPolicy", settings={"n_steps": 64}
    ),
    "trpo": Script("TRPO, CartPole-v1", "TRPO", "CartPole-v1"),
    "dqn": Script("DQN, CartPole-v1", "DQN", "CartPole-v1", n_envs=1, settings=REPLAY),
    "sac": Script("SAC, Pendulum-v1", "SAC", "Pendulum-v1", n_envs=1, settings=REPLAY),
    "td3": Script("TD3, Pendulum-v1", "TD3", "Pendulum-v1", n_envs=1, settings=REPLAY),
    "own_network": Script(
        "PPO with a features extractor of one's own, CartPole-v1",
        "PPO",
        "CartPole-v1",
        features=OwnFeatures,
    ),
    "cnn": Script("PPO with `CnnPolicy`, images of 36 x 36 x 3", "PPO", images, "CnnPolicy", settings={"n_steps": 32}),
}


def rate(learn: Callable[[], Any], env_steps: int, seconds: float) -> float:
    """Return env steps per second of a function that takes so many; the first call is not counted."""
    learn()
    began_s, calls = time.perf_counter(), 0
    while (took_s := time.perf_counter() - began_s) < seconds or not calls:
        learn()
        calls += 1
    return calls * env_steps / took_s


def of_class(script: Script, cls: Any, on_ours: bool, seconds: float, seed: int) -> float:
    """Return the env steps per second of `learn` of SB3's class or ours, on SB3's vec env or ours."""
    if on_ours:
        env = make_vec_env(script.env, n_envs=script.n_envs, seed=seed).as_sb3_vec_env()
    else:
        env = make_sb3_vec_env(script.env, n_envs=script.n_envs, seed=seed)
    env = env if script.wrap is None else script.wrap(env)
    model = cls(script.policy, env, seed=seed, device="cpu", **script.arguments)
    callback = None if script.callback is None else script.callback()
    learn = partial(model.learn, script.chunk, callback=callback, reset_num_timesteps=False)
    return rate(learn, script.chunk, seconds)


def of_joint(script: Script, seconds: float, seed: int) -> float:
    """Return the env steps per second of a `MultiAgentAlgorithm`."""
    env = make_vec_env(script.env, n_envs=script.n_envs, seed=seed)
    spec = PolicySpec(script.ours, script.policy, **script.arguments)
    joint = MultiAgentAlgorithm(env, {"shared": spec}, seed=seed, device="cpu")
    return rate(partial(joint.learn, script.chunk, reset_num_timesteps=False), script.chunk, seconds)


def compare_scripts(arguments: Any) -> None:
    """Measure the scripts one after the other, and print a table with a row for each."""
    results = {}
    for name in arguments.only:
        script = CASES[name]
        sides: dict[str, Callable[[int], float]] = {
            STOCK: partial(of_class, script, script.stock, False, arguments.seconds),
            IN_PLACE: partial(of_class, script, script.ours, False, arguments.seconds),
            ROWS: partial(of_class, script, script.ours, True, arguments.seconds),
        }
        if script.wrap is None and script.callback is None:
            sides[JOINT] = partial(of_joint, script, arguments.seconds)
        results[name] = Comparison("env steps/s", take_turns(sides, arguments.repeats, name), base=STOCK)
    rows = []
    for name, rates in results.items():
        medians, ratios = rates.medians(), rates.ratios()
        ours = [f"{ratios[side]:.1f} x" if side in ratios else "-" for side in (IN_PLACE, ROWS, JOINT)]
        rows.append([CASES[name].what, number(medians[STOCK]), *ours])
    SCRIPTS.print()
    print_markdown(["script", f"env steps/s of {STOCK}", IN_PLACE, ROWS, JOINT], rows)
    Report("newcomers", SCRIPTS, {name: rates.facts() for name, rates in results.items()}).write(arguments.json)


# --- Tutorials of PettingZoo -----------------------------------------------------------------------------------------

Act = Callable[[str, Any], Any]  # agent and observation -> action


class BothSides(gymnasium.Env[Any, Any]):
    """A game of two players as one player's, as in the tutorial: a move is paid by what its player has got so far."""

    def __init__(self, env_id: str) -> None:
        self.game = pettingzoo.make("aec", env_id)
        agent = self.game.possible_agents[0]
        self.observation_space = self.game.observation_space(agent)["observation"]
        self.action_space = self.game.action_space(agent)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        self.game.reset(seed=seed)
        return self._seen()["observation"], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move for the player whose turn it is; the observation is the next one's."""
        mover = self.game.agent_selection
        self.game.step(int(action))
        ends = self.game.terminations[mover], self.game.truncations[mover]
        return self._seen()["observation"], self.game._cumulative_rewards[mover], *ends, {}

    def action_masks(self) -> Any:
        """Return the moves that are legal, for sb3-contrib."""
        return self._seen()["action_mask"].astype(bool)

    def _seen(self) -> Any:
        return self.game.observe(self.game.agent_selection)


@dataclass(frozen=True)
class Tutorial:
    """A tutorial: an env, how it trains there, and how here."""

    env_id: str
    env_steps: int
    env_kwargs: Mapping[str, Any]
    stock: Mapping[str, Any]  # hyperparameters of the tutorial
    ours: Mapping[str, Any]  # arguments of `train`
    is_game: bool = False
    may_die: bool = False  # agents end one by one

    def train_stock(self, seed: int) -> Act:
        """Train as the tutorial does."""
        if self.is_game:
            game = sb3_contrib.MaskablePPO("MlpPolicy", BothSides(self.env_id), seed=seed, **self.stock)
            game.learn(self.env_steps)
            return lambda agent, seen: int(
                game.predict(seen["observation"], deterministic=True, action_masks=seen["action_mask"])[0]
            )
        env = pettingzoo.make("parallel", self.env_id, **self.env_kwargs)
        env = supersuit.pettingzoo_env_to_vec_env_v1(supersuit.black_death_v3(env) if self.may_die else env)
        env = supersuit.concat_vec_envs_v1(env, 8, num_cpus=1, base_class="stable_baselines3")
        model = stable_baselines3.PPO("MlpPolicy", env, device="cpu", **self.stock)
        model.set_random_seed(None)  # SuperSuit's vec envs take no seed: the turns differ by themselves
        agents = len(pettingzoo.make("parallel", self.env_id, **self.env_kwargs).possible_agents)
        model.learn(self.env_steps * agents)
        return lambda agent, seen: model.predict(seen, deterministic=True)[0]

    def train_ours(self, seed: int) -> Act:
        """Train by `marl_sb3.train`."""
        settings = {f"env.{name}": value for name, value in self.env_kwargs.items()}
        with tempfile.TemporaryDirectory() as folder:
            run = marl_sb3.train(
                self.ours.get("env", self.env_id),
                timesteps=self.env_steps,
                seed=seed,
                settings={**settings, **self.ours.get("settings", {})},
                algo=self.ours.get("algo"),
                run_dir=Path(folder) / "run",
                progress_bar=False,
            )
        return lambda agent, seen: run.algorithm.predict({agent: seen}, deterministic=True)[agent]


KNIGHTS = {"max_cycles": 100, "max_zombies": 4, "obs_method": "vector"}
TASKS: Mapping[str, Tutorial] = {
    "waterworld": Tutorial(
        "marl_sb3/waterworld-v0",
        98_304,
        {},
        {"learning_rate": 1e-3, "batch_size": 256},
        {"env": "waterworld"},
    ),
    "knights": Tutorial(
        "butterfly/knights_archers_zombies-v11", 32_768, KNIGHTS, {"batch_size": 256}, {}, may_die=True
    ),
    "connect_four": Tutorial("classic/connect_four-v3", 20_480, {}, {}, {"algo": "maskable_ppo"}, is_game=True),
}
EPISODES = 100


def play(task: Tutorial, act: Act | None, seed: int) -> dict[str, float]:
    """Return the mean return of each agent, and in a game against a random player the parts of games that are won.

    Args:
        act: of all agents, in a game of one player after the other; None: random agents.
    """
    rng = np.random.default_rng(seed)
    if task.is_game:
        won = {f"wins as {player}": play_game(task, act, player, rng) for player in ("player_0", "player_1")}
        return {name: statistics.fmean(results) for name, results in won.items()}
    env = pettingzoo.make("parallel", task.env_id, **task.env_kwargs)
    returns = dict.fromkeys(env.possible_agents, 0.0)
    for _ in range(EPISODES):
        seen, _ = env.reset(seed=int(rng.integers(2**31)))
        for index, agent in enumerate(env.possible_agents):
            env.action_space(agent).seed(int(rng.integers(2**31)) + index)
        while env.agents:
            actions = {
                agent: act(agent, seen[agent]) if act else env.action_space(agent).sample() for agent in env.agents
            }
            seen, rewards, *_ = env.step(actions)
            for agent, reward in rewards.items():
                returns[agent] += reward / EPISODES
    return returns


def play_game(task: Tutorial, act: Act | None, player: str, rng: np.random.Generator) -> list[bool]:
    """Return which games against a random player are won."""
    game, won = pettingzoo.make("aec", task.env_id), []
    for _ in range(EPISODES // 2):
        game.reset(seed=int(rng.integers(2**31)))
        while not (game.terminations[game.agent_selection] or game.truncations[game.agent_selection]):
            agent = game.agent_selection
            seen = game.observe(agent)
            legal = np.flatnonzero(seen["action_mask"])
            game.step(int(act(agent, seen) if act and agent == player else rng.choice(legal)))
        won.append(game.rewards[player] > 0)
    return won


def compare_tutorials(arguments: Any) -> None:
    """Train and evaluate both sides of the tutorials, and print a table with two rows for each."""
    results: dict[str, Any] = {}
    rows = []
    for name in arguments.tutorials:
        task = TASKS[name]

        def measured(train: Callable[[int], Act], seed: int, task: Tutorial = task) -> dict[str, float]:
            began_s = time.perf_counter()
            act = train(seed)
            took_s = time.perf_counter() - began_s
            return {"seconds": took_s, **play(task, act, seed)}

        sides = {"tutorial": partial(measured, task.train_stock), "marl_sb3": partial(measured, task.train_ours)}
        results[name] = {**take_turns(sides, arguments.repeats, name), "random": [play(task, None, 0)]}
        for side, turns in results[name].items():
            middle = {each: [turn[each] for turn in turns] for each in turns[0]}
            took = f"{statistics.median(middle.pop('seconds')):.0f}" if "seconds" in middle else "-"
            reached = ", ".join(f"{each} {statistics.fmean(of):.2f}" for each, of in middle.items())
            rows.append([f"{name}: {side}", f"{task.env_steps:,}" if took != "-" else "-", took, reached])
            say(" | ".join(rows[-1]))
    TUTORIALS.print()
    print_markdown(["", "env steps", "seconds", "mean over episodes and seeds"], rows)
    Report("newcomers", TUTORIALS, results).write(arguments.json)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the scripts, or the tutorials if some are named, and print a Markdown table."""
    options = parser(__doc__)
    add_names(options, "--only", CASES)
    add_names(options, "--tutorials", TASKS)
    options.set_defaults(tutorials=())
    options.add_argument("--seconds", type=float, default=5.0, help="of each side in a turn; default: 5")
    arguments = options.parse_args(argv)
    one_torch_thread()
    (compare_tutorials if arguments.tutorials else compare_scripts)(arguments)


if __name__ == "__main__":
    main()
