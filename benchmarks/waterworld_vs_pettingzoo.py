"""Compare our Waterworld with that of PettingZoo 1.25 (pymunk): whether both are the same game, and their speed.

    python -m venv DIR
    DIR/bin/pip install "pettingzoo==1.25.*" "pymunk<7" pygame scipy
    python benchmarks/waterworld_vs_pettingzoo.py --pettingzoo-python DIR/bin/python [--episodes 100] [--json FILE]

(`pettingzoo[sisl]` would also build Box2D, which Waterworld does not need.)

replay: our rules play episodes of PettingZoo again, from the same start, with the same actions and the same new places
for what was eaten or touched.

distributions: both sides play episodes with their own seeds and the same scripted policies, which see nothing but
observations. z is the difference of the means over episodes in standard errors; with equal distributions, |z| > 2 in
5 % of the cases. The table of observations has a row for each block of components; the JSON also has quantiles.

speed: env steps per second of CPU time, on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from command_line import add_count, add_names, parser, positive
from measure import Comparison, Report, Setting, listed, number, print_table, say
from processes import HERE, SideError, watch
from waterworld_checks import EVENTS, Record, compare_numbers, compare_observations, replay
from waterworld_policies import POLICIES

from marl_sb3.envs.waterworld import WaterworldEnv
from marl_sb3.types import Array

SIDE = "waterworld_pettingzoo_side.py"
EVERY = 10  # every 10th env step is kept for the distributions of observations
REPLAYED = 1  # number of replayed episodes
# 0.01 is our default and the one of PettingZoo's documentation, 0.5 the default of PettingZoo's code.
CASES = {"accel 0.01": {"pursuer_max_accel": 0.01}, "accel 0.5": {"pursuer_max_accel": 0.5}}
SETTING = Setting(
    what="waterworld, scripted policies, no training",
    hyperparameters={},
    threads="1; CPU time",
    changes={"A": "envs as arrays, compared with our single env", "C": "other draws, compared with PettingZoo"},
    packages=("marl_sb3", "numpy"),
)


# --- The sides -------------------------------------------------------------------------------------------------------


def pettingzoo_arrays(python: str, job: Mapping[str, Any], timeout_s: float) -> dict[str, Array]:
    """Run PettingZoo's side; return the arrays that it writes.

    Raises:
        SideError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "side.npz"
        if watch([python, str(HERE / SIDE), json.dumps(job), str(file)], timeout_s).timed_out:
            raise SideError(f"{SIDE} was not done after {timeout_s:g} s")
        with np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)


def record_of(arrays: Mapping[str, Array]) -> Record:
    """Return the episodes in the arrays of PettingZoo's side."""
    observations, episodes = arrays["observations"], len(arrays["returns"])
    by_episode = observations.reshape(episodes, -1, *observations.shape[1:])
    return Record(by_episode, arrays["returns"], arrays["counts"], arrays["lengths"])


def our_record(settings: Mapping[str, Any], policy: str, episodes: int, seed: int) -> Record:
    """Play our episodes, all in one batch."""
    template = WaterworldEnv(**settings)
    env, n_sensors, agents = (
        template.make_batched(episodes, **settings),
        template.parameters.n_sensors,
        template.possible_agents,
    )
    env.reset(range(episodes), range(seed, seed + episodes))
    act, rng = POLICIES[policy], np.random.default_rng(seed)
    kept: list[Array] = []
    returns, counts = np.zeros((episodes, len(agents))), np.zeros((episodes, len(EVENTS), len(agents)))
    length, ended, seen = 0, False, np.asarray(env.observations())
    while not ended:
        actions = act(seen.reshape(episodes * len(agents), -1), n_sensors, rng)
        step = env.step(actions.reshape(episodes, len(agents), 2))
        length, ended, seen = length + 1, bool(step.truncated.all()), np.asarray(env.observations())
        returns += step.rewards
        happened = [[step.infos[agent][event] for agent in agents] for event in EVENTS]
        counts += np.moveaxis(np.array(happened), 2, 0)
        if length % EVERY == 0:
            kept.append(seen)
    return Record(np.stack(kept, axis=1), returns, counts, np.full(episodes, length))


def our_rate(settings: Mapping[str, Any], num_envs: int, seconds: float) -> float:
    """Measure steps and observations, in env steps per second of CPU time."""
    env = WaterworldEnv.make_batched(num_envs, **{**settings, "max_cycles": 10**9})
    env.reset(range(num_envs), range(num_envs))
    shape = (10, num_envs, len(env.possible_agents), 2)
    actions = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)

    def step_ten_times() -> None:
        for action in actions:
            env.step(action)
            env.observations()

    step_ten_times()
    steps, started_s = 0, time.process_time()
    while time.process_time() - started_s < seconds:
        step_ten_times()
        steps += len(actions) * num_envs
    return steps / (time.process_time() - started_s)


# --- The comparison --------------------------------------------------------------------------------------------------


def compare(python: str, settings: Mapping[str, Any], policy: str, arguments: Any) -> dict[str, Any]:
    """Compare both sides with one policy and print the tables; return the figures for JSON."""
    job = {
        "settings": settings,
        "policy": policy,
        "episodes": arguments.episodes,
        "seed": arguments.seed,
        "every": EVERY,
    }
    arrays = pettingzoo_arrays(python, {**job, "trace": REPLAYED}, arguments.timeout_s)
    ours, theirs = our_record(settings, policy, arguments.episodes, arguments.seed), record_of(arrays)
    n_sensors = WaterworldEnv(**settings).parameters.n_sensors
    found: dict[str, Any] = {
        "replay": replay(arrays, settings),
        "numbers": compare_numbers(ours, theirs),
        "observations": compare_observations(ours, theirs, n_sensors),
        "pettingzoo env steps/s": 1 / float(arrays["env_step_s"]),
        "pettingzoo versions": json.loads(str(arrays["versions"])),
    }
    print(
        "replay: "
        + listed(
            {
                name: f"{value:,}" if isinstance(value, int) else f"{value:.2g}"
                for name, value in found["replay"].items()
            }
        )
    )
    print_table(["", "ours", "PettingZoo's", "z"], list(_number_rows(found["numbers"])))
    header = ["", "ours: mean", "SD", "PettingZoo's: mean", "SD", "means apart", "KS", "|z| > 2", "largest |z|"]
    print_table(header, [_block_row(name, block) for name, block in found["observations"].items()])
    return found


def _number_rows(numbers: Mapping[str, Mapping[str, Any]]) -> Any:
    for name, values in numbers.items():
        for agent, z in enumerate(values["z"]):
            sides = [
                f"{number(values[f'{side} mean'][agent])} +- {number(values[f'{side} error'][agent])}"
                for side in ("our", "their")
            ]
            yield [f"{name} {agent}" if len(values["z"]) > 1 else name, *sides, f"{z:.1f}"]


def _block_row(name: str, block: Mapping[str, Any]) -> list[str]:
    moments = [f"{block[f'{side} {what}']:.4f}" for side in ("our", "their") for what in ("mean", "SD")]
    apart = [f"{block['largest difference of means']:.4f}", f"{block['largest KS distance']:.4f}"]
    return [name, *moments, *apart, f"{100 * block['share of |z| > 2']:.0f} %", f"{block['largest |z|']:.1f}"]


def measure_speed(settings: Mapping[str, Any], theirs: Sequence[float], seconds: float) -> dict[str, Any]:
    """Measure our speed three times and print it beside PettingZoo's; return the figures for JSON."""
    ours = {f"marl_sb3, {n} envs": [our_rate(settings, n, seconds) for _ in range(3)] for n in (1, 16, 64, 256)}
    rates = Comparison("env steps/s", {"PettingZoo 1.25": theirs, **ours}, "PettingZoo 1.25")
    rates.print()
    return rates.facts()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code, which is 1 if PettingZoo's side failed.

    Raises:
        SystemExit: with code 2 if the command line is wrong, for example if there is no such Python.
    """
    options = parser(__doc__, repeats=None)
    options.add_argument(
        "--pettingzoo-python", required=True, metavar="PATH", help="the Python of an environment with PettingZoo 1.25"
    )
    options.add_argument(
        "--episodes", type=_several, default=100, metavar="N", help="episodes of each side, at least 2; default: 100"
    )
    add_count(options, "--env-steps", 500, "length of an episode, a multiple of 10")
    options.add_argument("--pursuers", default="2,4", metavar="P,...", help="numbers of agents; default: 2,4")
    add_names(options, "--policies", POLICIES)
    options.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the first episode; default: 0")
    options.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="length of each measurement of our speed; default: 1.0"
    )
    options.add_argument(
        "--timeout-s", type=float, default=3600.0, metavar="S", help="limit for each process; default: 3600"
    )
    arguments = options.parse_args(argv)
    if not os.access(arguments.pettingzoo_python, os.X_OK):
        options.error(f"--pettingzoo-python: there is no Python at {arguments.pettingzoo_python}")
    try:
        _measure(arguments)
    except SideError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _several(text: str) -> int:
    if int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text} is not accepted; at least 2, since the spread is needed")
    return int(text)


def _measure(arguments: Any) -> None:
    report = Report("waterworld_vs_pettingzoo", SETTING)
    SETTING.print()
    for n_pursuers in map(positive, arguments.pursuers.split(",")):
        rates = []
        for case, changed in CASES.items():
            for policy in arguments.policies:
                name = f"{n_pursuers} pursuers, {case}, {policy}"
                say(name)
                print(f"\n{name}")
                settings = {"n_pursuers": n_pursuers, "max_cycles": arguments.env_steps, **changed}
                found = compare(arguments.pettingzoo_python, settings, policy, arguments)
                rates.append(found["pettingzoo env steps/s"])
                report.results[name] = found
        speed = f"{n_pursuers} pursuers, speed"
        print(f"\n{speed}")
        report.results[speed] = measure_speed({"n_pursuers": n_pursuers}, rates, arguments.seconds)
    report.write(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
