"""Compare marl_sb3 with RLlib's PPO (new API stack) in the arena, one policy per agent: speed, and time to a return.

    python benchmarks/arena_vs_rllib.py --make-venv DIR        # once, takes minutes: RLlib's virtual environment
    python benchmarks/arena_vs_rllib.py --rllib-python DIR/bin/python [--repeats 3] [--json FILE]

throughput: env steps per second with the same hyperparameters; the first iteration is not counted. Both sides do the
same work: they train about 20 agent steps per env step, as the table shows. `rllib_side.py` describes how RLlib counts.

reach: seconds from the start of a new process until the mean sum of returns is 15, with the preset of the arena.
marl_sb3 runs
`python -m marl_sb3.train arena --policies per_agent --stop env_runners/episode_return_mean=15 --seed S --quiet`
and is timed until its process has ended. RLlib is timed until it reports an iteration with such an
`episode_return_mean`. Two things favour RLlib: its mean covers 20 episodes, marl_sb3's the last 100; and the time of
marl_sb3 includes saving and shutting down.

The sides take turns, each in its own process. The fused kernels are compiled before, since that happens once per
machine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line import add_count, parser
from measure import Comparison, Report, Setting, listed, say, take_turns
from processes import HERE, SideError, make_venv, parsed_lines, watch
from reach import Reach, our_reach, print_reaches, their_reach

from marl_sb3 import PPO
from marl_sb3.core.learners.spec import hyperparameter_defaults
from marl_sb3.runs.settings import load_config

# RLlib, and what the arena imports, which both sides take from here.
REQUIREMENTS = ("torch==2.13.0", "ray[rllib]==2.60.0", "pettingzoo", "lazy_loader", "msgspec")
NAMES = ["n_steps", "batch_size", "n_epochs", "learning_rate", "gamma", "gae_lambda"]
NAMES += ["clip_range", "ent_coef", "vf_coef", "max_grad_norm"]
OURS, RLLIB = "marl_sb3", "RLlib"
SETTING = Setting(
    what="arena, one policy per agent, separate actor and critic networks 64x64 (tanh)",
    hyperparameters={},
    threads="marl_sb3: 1 torch thread, updates of the policies in parallel; RLlib: a learner and 2 env runners",
    changes={"A": "batched arena", "B": "fused networks, in rollouts and in updates; both compared with stock SB3"},
)


# --- Hyperparameters -------------------------------------------------------------------------------------------------


def equal_hyperparameters() -> dict[str, Any]:
    """Return those of the throughput: SB3's defaults except for the sizes of rollout and minibatch."""
    own = {"n_envs": 20, "n_steps": 100, "batch_size": 128, "n_epochs": 10, "n_timesteps": 200_000}
    defaults = hyperparameter_defaults(PPO)
    return {**{name: defaults[name] for name in NAMES}, **own, "net_arch": [64, 64]}


def preset_hyperparameters() -> dict[str, Any]:
    """Return those of the time to a return: the preset of the arena."""
    preset = load_config("arena")
    values = {**hyperparameter_defaults(PPO), **preset.hyperparameters}
    size = {"n_envs": preset.n_envs, "n_timesteps": preset.n_timesteps}
    return {**{name: values[name] for name in NAMES}, **size, "net_arch": [64, 64]}


# --- Throughput ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Throughput:
    """The throughput of one process, without its first iteration."""

    env_steps_per_s: float
    agent_steps_trained_per_env_step: float
    versions: Mapping[str, str]


def throughput(python: str, script: str, iterations: int, seed: int, timeout_s: float) -> Throughput:
    """Run a side for `iterations` and one more that is not counted.

    Raises:
        SideError: it failed, or did not print what was expected.
    """
    settings = ["--iterations", str(iterations + 1), "--seed", str(seed)]
    watched = watch([python, str(HERE / script), json.dumps(equal_hyperparameters()), *settings], timeout_s)
    if watched.timed_out:
        raise SideError(f"{script} was not done after {timeout_s:g} s")
    versions, *lines = parsed_lines(watched, script)
    if len(lines) != iterations + 1:
        raise SideError(f"{script} printed {len(lines)} iterations, not {iterations + 1}")
    first, last = lines[0], lines[-1]
    env_steps = last["env_steps"] - first["env_steps"]
    return Throughput(
        env_steps / (last["seconds"] - first["seconds"]),
        (last["agent_steps_trained"] - first["agent_steps_trained"]) / env_steps,
        versions["versions"],
    )


def measure_throughput(rllib_python: str, repeats: int, iterations: int, timeout_s: float) -> dict[str, Any]:
    """Measure both sides and print the table; return the figures for JSON."""
    sides: dict[str, Callable[[int], Throughput]] = {
        RLLIB: lambda turn: throughput(rllib_python, "rllib_side.py", iterations, turn, timeout_s),
        OURS: lambda turn: throughput(sys.executable, "marl_sb3_side.py", iterations, turn, timeout_s),
    }
    turns = take_turns(sides, repeats, "throughput")
    rates = Comparison("env steps/s", {side: [one.env_steps_per_s for one in turns[side]] for side in turns}, RLLIB)
    work = {side: statistics.median(one.agent_steps_trained_per_env_step for one in turns[side]) for side in turns}
    hyperparameters = equal_hyperparameters()
    print(f"\nthroughput at {listed(hyperparameters)}")
    print(f"RLlib's environment: {listed(turns[RLLIB][0].versions)}")
    rates.print()
    print("agent steps trained per env step: " + listed({side: f"{count:.1f}" for side, count in work.items()}))
    return {
        **rates.facts(),
        "hyperparameters": hyperparameters,
        "agent_steps_trained_per_env_step": work,
        "versions": {side: turns[side][0].versions for side in turns},
    }


# --- Time to a return ------------------------------------------------------------------------------------------------


def measure_reach(rllib_python: str, repeats: int, target: float, timeout_s: float) -> dict[str, Any]:
    """Measure both sides and print the table; return the figures for JSON."""
    hyperparameters = preset_hyperparameters()
    theirs = [rllib_python, str(HERE / "rllib_side.py"), json.dumps(hyperparameters), "--stop-return", str(target)]
    sides: dict[str, Callable[[int], Reach]] = {
        RLLIB: lambda turn: their_reach([*theirs, "--seed", str(turn)], target, timeout_s),
        OURS: lambda turn: our_reach(["arena", "--policies", "per_agent"], target, turn, timeout_s),
    }
    turns = take_turns(sides, repeats, "reach")
    print(
        f"\nseconds from the start of the process to a mean sum of returns of {target:g}, at {listed(hyperparameters)}"
    )
    return {**print_reaches(turns, RLLIB), "hyperparameters": hyperparameters, "target": target}


# --- The command -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code, which is 1 if a side failed.

    Raises:
        SystemExit: with code 2 if the command line is wrong, for example if there is no such Python.
    """
    options = parser(__doc__)
    source = options.add_mutually_exclusive_group(required=True)
    source.add_argument("--rllib-python", metavar="PATH", help="the Python of an environment with RLlib")
    source.add_argument(
        "--make-venv",
        type=Path,
        metavar="DIR",
        help=f"make one there with pip ({' '.join(REQUIREMENTS)}), and stop",
    )
    options.add_argument("--only", choices=["throughput", "reach"], help="one of the two; default: both")
    add_count(options, "--iterations", 5, "counted iterations of throughput")
    options.add_argument("--target-return", type=float, default=15.0, metavar="R", help="return of reach; default: 15")
    options.add_argument(
        "--timeout-s", type=float, default=900.0, metavar="S", help="limit for each process; default: 900"
    )
    arguments = options.parse_args(argv)
    if arguments.rllib_python and not os.access(arguments.rllib_python, os.X_OK):
        options.error(f"--rllib-python: there is no Python at {arguments.rllib_python}; --make-venv DIR makes one")
    try:
        if arguments.make_venv:
            print(make_venv(arguments.make_venv, REQUIREMENTS))
            return 0
        say("compiling the fused kernels, unless they are in the cache")
        PPO("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu").learn(1)
        _measure(arguments)
    except SideError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _measure(arguments: Any) -> None:
    report = Report("arena_vs_rllib", SETTING)
    python, repeats, timeout_s = arguments.rllib_python, arguments.repeats, arguments.timeout_s
    SETTING.print()
    if arguments.only != "reach":
        report.results["throughput"] = measure_throughput(python, repeats, arguments.iterations, timeout_s)
    if arguments.only != "throughput":
        report.results["reach"] = measure_reach(python, repeats, arguments.target_return, timeout_s)
    report.write(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
