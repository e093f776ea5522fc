"""Compare marl_sb3 with PPO that is compiled whole by JAX, as PureJaxRL does it: time per env step, and to a return.

    python benchmarks/against_jax.py --make-venv DIR        # once: a virtual environment with JAX
    python benchmarks/against_jax.py --jax-python DIR/bin/python [--repeats 3] [--figure DIR] [--json FILE]

speed: microseconds per env step, rollouts and updates, in CartPole-v1 and with a shared policy in the arena. The first
call is not counted, and with it no compilation; what comes before the first iteration is shown apart, as it is in the
first turn, since later ones find what JAX has compiled in a cache. Both sides have all processors, and then one each;
neither is told how many threads to start. Microseconds of processor time, of all threads, are in the table too: other
programs disturb them less.

reach: seconds from the start of a new process until the mean return of the latest 100 episodes is 15 in the arena, at
its preset, and 400 in CartPole-v1, at PureJaxRL's hyperparameters. Compiling counts. JAX keeps nothing that it has
compiled unless it is told to; "JAX, compiled before" has such a cache, as marl_sb3 has for its kernels. Two things
favour JAX: the time of marl_sb3 includes its checkpoints and shutting down; JAX's side saves nothing, and its time ends
when the return is reached.

`--figure` draws env steps per second over the number of envs, in the fastest turn of each side, beside stock SB3 and,
with `--rllib-python`, RLlib (`arena_vs_rllib.py --make-venv` makes its environment). It needs matplotlib
(`pip install -e '.[docs]'`).

The sides take turns, each in its own processes. `jax_side.py` says what it does, and what favours it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from command_line import add_count, add_names, parser
from measure import Comparison, Report, Setting, cores, listed, number, print_table, say, spread, take_turns
from processes import HERE, SideError, can_limit_processors, limited_to, make_venv, parsed_lines, watch
from reach import Reach, our_reach, print_reaches, their_reach

from marl_sb3 import PPO
from marl_sb3.core.learners.spec import hyperparameter_defaults
from marl_sb3.runs.settings import load_config

REQUIREMENTS = ("jax==0.7.2", "jaxlib==0.7.2", "numpy")
JAX, CACHED, OURS, STOCK, RLLIB = "JAX", "JAX, compiled before", "marl_sb3", "stock SB3", "RLlib"
NAMES = ["n_steps", "batch_size", "n_epochs", "learning_rate", "gamma", "gae_lambda"]
NAMES += ["clip_range", "ent_coef", "vf_coef", "max_grad_norm"]
SETTING = Setting(
    what="PPO with separate actor and critic networks 64x64 (tanh), one shared policy",
    hyperparameters={},
    threads="each side starts as many threads as it likes, on the processors that the table names",
    changes={"A": "batched envs", "B": "fused networks, in rollouts and in updates; both compared with stock SB3"},
    packages=("marl_sb3", "stable-baselines3", "torch", "numpy", "numba", "gymnasium"),
)


@dataclass(frozen=True)
class Case:
    """What is trained."""

    name: str
    env: str
    hyperparameters: Mapping[str, Any]  # SB3's names, `n_envs`, `net_arch`, and `n_timesteps` where they have an end


def case(name: str, env: str, **own: Any) -> Case:
    """Make a case with SB3's defaults, except for its own hyperparameters."""
    defaults = hyperparameter_defaults(PPO)
    return Case(name, env, {**{name: defaults[name] for name in NAMES}, "net_arch": [64, 64], **own})


def cartpole(n_envs: int, n_steps: int, n_epochs: int, name: str = "") -> Case:
    """Make a case of CartPole with four minibatches."""
    rows = n_envs * n_steps
    name = name or f"CartPole-v1, {n_envs} x {n_steps} x {n_epochs}"
    return case(name, "CartPole-v1", n_envs=n_envs, n_steps=n_steps, batch_size=max(1, rows // 4), n_epochs=n_epochs)


def arena(n_envs: int) -> Case:
    """Make a case of the arena with minibatches of 128."""
    return case(f"arena, {n_envs} x 100 x 10", "arena", n_envs=n_envs, n_steps=100, batch_size=128, n_epochs=10)


CASES = {
    "cartpole-4": cartpole(4, 128, 4),
    "cartpole-8": cartpole(8, 256, 10),
    "cartpole-64": cartpole(64, 128, 4),
    "arena-20": arena(20),
    "arena-100": arena(100),
}


TARGETS = {"arena": 15.0, "cartpole": 400.0}  # mean sums of returns


def reach_cases() -> dict[str, Case]:
    """Return what is trained to a return: the arena at its preset, and CartPole at PureJaxRL's hyperparameters."""
    preset = load_config("arena")
    size = {"n_envs": preset.n_envs, "n_timesteps": preset.n_timesteps}
    own = {name: value for name, value in preset.hyperparameters.items() if name in NAMES}
    pure = {"n_envs": 4, "n_timesteps": 500_000, "n_steps": 128, "batch_size": 128, "n_epochs": 4}
    rates = {"learning_rate": "lin_2.5e-4", "ent_coef": 0.01}
    return {
        "arena": case("arena", "arena", **size, **own),
        "cartpole": case("cartpole", "CartPole-v1", **pure, **rates),
    }


# --- Time per env step -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What a case cost in one turn."""

    us: float  # microseconds per env step
    processor_us: float  # the same of processor time, over all threads
    preparing_s: float  # seconds before the first iteration: making envs and networks, compiling


@dataclass(frozen=True)
class Costs:
    """What the cases cost in one turn."""

    cases: Mapping[str, Cost]  # case -> its cost
    versions: Mapping[str, str]  # of the side's packages


def costs(command: Sequence[str], cases: Iterable[Case], seconds: float, timeout_s: float, seed: int) -> Costs:
    """Run a side: a process that trains all cases.

    Raises:
        SideError: it failed, took too long, or did not print what was expected.
    """
    script = Path(command[1]).name
    cases = list(cases)
    asked = json.dumps([asdict(each) for each in cases])
    watched = watch([*command[:2], asked, *command[2:], "--seconds", str(seconds), "--seed", str(seed)], timeout_s)
    if watched.timed_out:
        raise SideError(f"{script} was not done after {timeout_s:g} s")
    versions, *lines = parsed_lines(watched, script)
    if [line.get("case") for line in lines] != [each.name for each in cases]:
        raise SideError(f"{script} printed other cases than {', '.join(each.name for each in cases)}: {lines}")
    made = {line["case"]: _cost(**line) for line in lines}
    return Costs(made, versions["versions"])


def _cost(case: str, env_steps: int, seconds: float, cpu_s: float, preparing_s: float) -> Cost:
    return Cost(1e6 * seconds / env_steps, 1e6 * cpu_s / env_steps, preparing_s)


def measure_speed(
    sides: Mapping[str, Sequence[str]], cases: Sequence[Case], repeats: int, seconds: float, timeout_s: float
) -> dict[str, Any]:
    """Measure both sides with all processors and with one, and print a table for each; return the figures for JSON."""
    found: dict[str, Any] = {}
    for processors in sorted({cores(), 1} if can_limit_processors() else {cores()}, reverse=True):
        with tempfile.TemporaryDirectory() as cache, limited_to(processors):
            cached = {**sides, JAX: [*sides[JAX], "--cache", cache]}  # only the first turn compiles
            run = {name: partial(costs, command, cases, seconds, timeout_s) for name, command in cached.items()}
            turns = take_turns(run, repeats, f"speed, processors: {processors}")
        print(f"\nmicroseconds per env step: median (min to max); processors: {processors}")
        found |= {f"{name}, processors: {processors}": facts for name, facts in _speeds(turns, cases).items()}
    print(f"\n{JAX}'s environment: {listed(turns[JAX][0].versions)}")
    return found


def _speeds(turns: Mapping[str, Sequence[Costs]], cases: Sequence[Case]) -> dict[str, Any]:
    """Print a table with a row for each case; return case -> figures for JSON."""
    found, rows = {}, []
    for each in cases:
        of_case = {side: [one.cases[each.name] for one in runs] for side, runs in turns.items()}
        wall = Comparison("us", {side: [one.us for one in of_case[side]] for side in turns}, JAX, True)
        cpu = Comparison("us", {side: [one.processor_us for one in of_case[side]] for side in turns}, JAX, True)
        preparing = {side: runs[0].preparing_s for side, runs in of_case.items()}
        middle = [*(number(us) for us in cpu.medians().values()), f"{cpu.ratios()[OURS]:.2f} x"]
        before = [f"{preparing[side]:.1f} s" for side in turns]
        rows.append([each.name, *map(spread, wall.raw.values()), f"{wall.ratios()[OURS]:.2f} x", *middle, *before])
        found[each.name] = {
            **wall.facts(),
            "processor time": cpu.facts(),
            "preparing_s": preparing,
            "hyperparameters": each.hyperparameters,
        }
    of_cpu, before = ([f"{side}, {what}" for side in turns] for what in ("processor time", "before the first"))
    print_table(["", *turns, "speed", *of_cpu, "speed", *before], rows)
    return found


# --- Time to a return ------------------------------------------------------------------------------------------------


def measure_reach(jax_python: str, asked: Case, target: float, repeats: int, timeout_s: float) -> dict[str, Any]:
    """Measure the sides and print the table; return the figures for JSON."""
    command = [jax_python, str(HERE / "jax_side.py"), json.dumps([asdict(asked)]), "--stop-return", str(target)]
    with tempfile.TemporaryDirectory() as folder:
        hparams = Path(folder, "hparams.yml")
        hparams.write_text(json.dumps({asked.env: _hparams(asked)}), encoding="utf-8")  # JSON is YAML
        cached = [*command, "--cache", folder]
        watch([*cached, "--seed", "0"], timeout_s)  # compiles
        words = [asked.env, "--hparams", str(hparams)]
        sides: dict[str, Callable[[int], Reach]] = {
            JAX: lambda turn: their_reach([*command, "--seed", str(turn)], target, timeout_s),
            CACHED: lambda turn: their_reach([*cached, "--seed", str(turn)], target, timeout_s),
            OURS: lambda turn: our_reach(words, target, turn, timeout_s),
        }
        turns = take_turns(sides, repeats, f"reach, {asked.env}")
    print(
        f"\nseconds from the start of the process to a mean sum of returns of {target:g} in {asked.env}; "
        f"processors: {cores()}; at {listed(asked.hyperparameters)}"
    )
    return {**print_reaches(turns, JAX), "hyperparameters": asked.hyperparameters, "target": target}


def _hparams(asked: Case) -> dict[str, Any]:
    """Return the case as an entry of a file for `--hparams`."""
    own = {name: value for name, value in asked.hyperparameters.items() if name != "net_arch"}
    return {**own, "policy_kwargs": {"net_arch": asked.hyperparameters["net_arch"]}}


# --- The figure ------------------------------------------------------------------------------------------------------

ENVS = (1, 4, 16, 64, 256, 1024, 4096)
MOST_ROWS = 32_768  # of a rollout
COLOURS = {OURS: "#1f77b4", JAX: "#d95f02", STOCK: "#666666", RLLIB: "#7570b3"}


def figure_case(n_envs: int) -> Case:
    """Make a case of CartPole; rollouts have 128 steps, and fewer where they would have more than `MOST_ROWS` rows."""
    return cartpole(n_envs, min(128, max(1, MOST_ROWS // n_envs)), 4, name=str(n_envs))


def rates_of(command: Sequence[str], cases: Iterable[Case], seconds: float, timeout_s: float, seed: int) -> list[float]:
    """Return env steps per second of each case."""
    return [1e6 / each.us for each in costs(command, cases, seconds, timeout_s, seed).cases.values()]


def rllib_rates(python: str, cases: Iterable[Case], timeout_s: float, seed: int) -> list[float]:
    """Return env steps per second of each case with RLlib; the first iteration is not counted."""
    found = []
    for each in cases:
        words = ["--env", each.env, "--iterations", "2", "--seed", str(seed)]
        asked = json.dumps({**each.hyperparameters, "n_timesteps": 0})  # only learning rates that fall depend on it
        watched = watch([python, str(HERE / "rllib_side.py"), asked, *words], timeout_s)
        first, *_, last = parsed_lines(watched, "rllib_side.py")[1:]
        found.append((last["env_steps"] - first["env_steps"]) / (last["seconds"] - first["seconds"]))
    return found


def measure_figure(
    sides: Mapping[str, Sequence[str]], rllib_python: str | None, arguments: Any, folder: Path
) -> dict[str, Any]:
    """Measure all sides and draw the fastest turn of each point; return the points for JSON."""
    cases, limit_s = [figure_case(n_envs) for n_envs in ENVS], arguments.timeout_s
    with tempfile.TemporaryDirectory() as cache:
        cached = {**sides, JAX: [*sides[JAX], "--cache", cache]}
        run: dict[str, Callable[[int], list[float]]] = {
            side: partial(rates_of, command, cases, arguments.seconds, limit_s) for side, command in cached.items()
        }
        if rllib_python is not None:
            run[RLLIB] = partial(rllib_rates, rllib_python, cases, limit_s)
        turns = take_turns(run, arguments.repeats, "figure")
    rates = {side: [max(of_turns) for of_turns in zip(*found, strict=True)] for side, found in turns.items()}
    print(f"\nenv steps per second in CartPole-v1 over the number of envs, fastest turn; processors: {cores()}")
    print_table(["", *rates], [[str(n), *map(number, row)] for n, *row in zip(ENVS, *rates.values(), strict=True)])
    folder.mkdir(parents=True, exist_ok=True)
    draw(rates, folder / "against_jax.png")
    return {"unit": "env steps/s", "envs": list(ENVS), "raw": turns, "fastest": rates}


def draw(rates: Mapping[str, Sequence[float]], file: Path) -> None:
    """Draw a line for each side, whose env steps per second belong to the numbers of `ENVS`."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - needed for nothing else

    figure = Figure(figsize=(6.4, 4.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    for side in (side for side in COLOURS if side in rates):
        axes.plot(ENVS, rates[side], "o-", color=COLOURS[side], markersize=4, label=side)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(list(ENVS), [f"{n_envs:,}" for n_envs in ENVS])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("number of envs")
    axes.set_ylabel("env steps per second, rollouts and updates")
    axes.set_title(
        f"PPO in CartPole-v1, 64x64, 4 epochs of 4 minibatches; {cores()} processors", loc="left", fontsize=10
    )
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(file)


# --- The command -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code, which is 1 if a side failed.

    Raises:
        SystemExit: with code 2 if the command line is wrong, for example if there is no such Python.
    """
    options = parser(__doc__)
    source = options.add_mutually_exclusive_group(required=True)
    source.add_argument("--jax-python", metavar="PATH", help="the Python of an environment with JAX")
    source.add_argument(
        "--make-venv",
        type=Path,
        metavar="DIR",
        help=f"make one there with pip ({' '.join(REQUIREMENTS)}), and stop",
    )
    options.add_argument("--rllib-python", metavar="PATH", help="RLlib's, for --figure; default: without RLlib")
    add_names(options, "--measure", ("speed", "reach", "figure"))
    add_names(options, "--cases", CASES)
    add_names(options, "--reach-envs", TARGETS)
    options.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of each case in a turn; default: 2")
    options.add_argument("--figure", type=Path, metavar="DIR", help="draw against_jax.png there; default: no figure")
    add_count(options, "--timeout-s", 900, "limit of each process", metavar="S")
    arguments = options.parse_args(argv)
    for flag, python in (("--jax-python", arguments.jax_python), ("--rllib-python", arguments.rllib_python)):
        if python and not os.access(python, os.X_OK):
            options.error(f"{flag}: there is no Python at {python}; --make-venv DIR makes one")
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
    report, limit_s = Report("against_jax", SETTING), arguments.timeout_s
    ours = [sys.executable, str(HERE / "sb3_sides.py")]
    sides = {JAX: [arguments.jax_python, str(HERE / "jax_side.py")], OURS: ours}
    SETTING.print()
    if "speed" in arguments.measure:
        cases = [CASES[name] for name in arguments.cases]
        report.results |= measure_speed(sides, cases, arguments.repeats, arguments.seconds, limit_s)
    if "reach" in arguments.measure:
        for name in arguments.reach_envs:
            asked = reach_cases()[name]
            measured = measure_reach(arguments.jax_python, asked, TARGETS[name], arguments.repeats, limit_s)
            report.results[f"reach, {name}"] = measured
    if "figure" in arguments.measure and arguments.figure is not None:
        drawn = {**sides, STOCK: [*ours, "--stock"]}
        report.results["figure"] = measure_figure(drawn, arguments.rllib_python, arguments, arguments.figure)
    report.write(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
