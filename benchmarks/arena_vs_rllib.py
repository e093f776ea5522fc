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
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from command_line import add_count, parser
from measure import Comparison, Report, Setting, listed, print_table, say, spread, take_turns
from processes import HERE, SideError, parsed_lines, watch

from marl_sb3 import PPO
from marl_sb3.core.learners import hyperparameter_defaults
from marl_sb3.extensions.fast.kernels import ppo as kernel
from marl_sb3.runs import load_config

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


@dataclass(frozen=True)
class Reach:
    """How long one process took to reach the return."""

    seconds: float  # from its start until it reached the return, or gave up
    reached: bool  # whether it reached the return
    env_steps: int | None  # env steps by then; None if it reported nothing
    episode_return_mean: float | None  # mean return by then; None if it reported nothing


def our_reach(target: float, seed: int, timeout_s: float) -> Reach:
    """Run marl_sb3's command; its time is that of the whole process."""
    command = [sys.executable, "-m", "marl_sb3.train", "arena", "--policies", "per_agent"]
    command += ["--stop", f"env_runners/episode_return_mean={target:g}", "--seed", str(seed), "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        watched = watch(command, timeout_s, folder)
        results = sorted(Path(folder).glob("runs/arena/*/result.jsonl"))
        lines = results[0].read_text(encoding="utf-8").splitlines() if results else []
    if not lines:
        return Reach(watched.seconds, False, None, None)
    last = json.loads(lines[-1])
    returned = last["env_runners"]["episode_return_mean"]
    reached = returned is not None and returned >= target
    return Reach(watched.seconds, reached, last["num_env_steps_sampled_lifetime"], returned)


def rllib_reach(rllib_python: str, target: float, seed: int, timeout_s: float) -> Reach:
    """Run RLlib's side; its time ends with the line of the iteration that reached the return."""
    script = "rllib_side.py"
    settings = ["--stop-return", str(target), "--seed", str(seed)]
    command = [rllib_python, str(HERE / script), json.dumps(preset_hyperparameters()), *settings]
    watched = watch(command, timeout_s)
    lines = parsed_lines(watched, script)[1:] if watched.lines else []
    if not lines:
        return Reach(watched.seconds, False, None, None)
    last, at_s = lines[-1], watched.lines[-1][0]
    returned = last["episode_return_mean"]
    reached = returned is not None and returned >= target
    return Reach(at_s if reached else watched.seconds, reached, last["env_steps"], returned)


def measure_reach(rllib_python: str, repeats: int, target: float, timeout_s: float) -> dict[str, Any]:
    """Measure both sides and print the table; return the figures for JSON."""
    sides: dict[str, Callable[[int], Reach]] = {
        RLLIB: lambda turn: rllib_reach(rllib_python, target, turn, timeout_s),
        OURS: lambda turn: our_reach(target, turn, timeout_s),
    }
    turns = take_turns(sides, repeats, "reach")
    raw = {side: [one.seconds for one in turns[side]] for side in turns}
    times = Comparison("s", raw, RLLIB, less_is_better=True)
    hyperparameters = preset_hyperparameters()
    print(
        f"\nseconds from the start of the process to a mean sum of returns of {target:g}, at {listed(hyperparameters)}"
    )
    header = ["", "s: median (min to max)", "speed", "env steps: median (min to max)"]
    print_table(header, [_reach_row(side, turns, times.ratios()[side]) for side in turns])
    runs = {side: [asdict(one) for one in turns[side]] for side in turns}
    return {**times.facts(), "hyperparameters": hyperparameters, "target": target, "runs": runs}


def _reach_row(side: str, turns: Mapping[str, Sequence[Reach]], ratio: float) -> list[str]:
    """Return a table row. The seconds of a process that gave up are a lower bound, and so the ratio is a bound too."""
    runs = turns[side]
    failed = sum(not one.reached for one in runs)
    base_failed = side != RLLIB and not all(one.reached for one in turns[RLLIB])
    seconds = spread([one.seconds for one in runs])
    if failed:
        seconds = f"> {seconds}, {failed} of {len(runs)} did not reach it"
    sign = ("< " if failed and side != RLLIB else "") + ("> " if base_failed else "")
    steps = [one.env_steps for one in runs if one.env_steps is not None]
    return [side, seconds, f"{sign}{ratio:.1f} x", spread(steps) if steps else "none"]


# --- The command -----------------------------------------------------------------------------------------------------


def make_venv(folder: Path) -> str:
    """Make RLlib's virtual environment; return the path of its Python.

    Raises:
        SideError: pip failed.
    """
    python = str(folder / "bin" / "python")
    for command in ([sys.executable, "-m", "venv", str(folder)], [python, "-m", "pip", "install", *REQUIREMENTS]):
        say(" ".join(command))
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        if done.returncode:
            raise SideError(f"{' '.join(command)}\nended with exit code {done.returncode}")
    return python


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
            print(make_venv(arguments.make_venv))
            return 0
        say("compiling the fused kernels, unless they are in the cache")
        kernel.warm_up()
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
