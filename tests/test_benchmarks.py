"""Every benchmark runs at its smallest, and its JSON says what was measured and under which circumstances."""

from __future__ import annotations

import json
import math
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from forked import ForkServer, forked_subprocess
from small_runs import start

import marl_sb3
from marl_sb3.tools.serving.api import policy_server

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SHARED = {"command_line", "measure", "trainings", "processes", "many_agents", "marl_sb3_side", "rllib_side"}
SHARED |= {"reach", "timed_cases", "sb3_sides", "jax_side"}
SHARED |= {"external_client"}
SHARED |= {"waterworld_checks", "waterworld_policies", "waterworld_pettingzoo_side"}
NEEDS_RAY = {"ray_runners"}  # see tests/crash/test_ray.py
# which these tests replace
WITH_ANOTHER_PYTHON = ("arena_vs_rllib", "against_jax", "waterworld_vs_pettingzoo", "serving_load")
WITH_A_RUN = {"serving_soak"}
WITH_PACKAGES = {"env_packages"}


@dataclass(frozen=True)
class Small:
    """How a test runs a benchmark."""

    arguments: str  # the command line
    results: set[str]  # the names of its results
    # name of a constant of the benchmark -> a smaller value; those of a mapping are put into it
    constants: Mapping[str, Any] = field(default_factory=dict)


OFFLINE, PENDULUM = {"epochs": 1, "evaluated": 1}, {"ENVS": ("Pendulum-v1",), "EPISODES": 1}
RUNS = {
    "arena_vs_stock_sb3": Small(
        "--repeats 1 --iterations 1",
        {"throughput"},
        {"N_ENVS": 2, "N_STEPS": 8, "HYPERPARAMETERS": {"n_steps": 8, "batch_size": 8, "n_epochs": 1}},
    ),
    "cartpole_vs_stock_sb3": Small(
        "--repeats 1 --iterations 1",
        {"throughput"},
        {"N_STEPS": 8, "HYPERPARAMETERS": {"n_steps": 8, "batch_size": 32, "n_epochs": 1}},
    ),
    "batches_vs_stock_sb3": Small(
        "--repeats 1 --steps 2 --iterations 1 --cases CartPole-v1",
        {"CartPole-v1-steps", "CartPole-v1-PPO"},
        {"N_STEPS": 8},
    ),
    "curves_vs_stock_sb3": Small("--seeds 2 --timesteps 250 --algos sac", {"sac-Pendulum-v1"}, PENDULUM),
    "search_errors": Small("--trials 2 --races 2", {"opposed", "races"}),
    "search_simulation": Small("--searches 1 --trials 2", {"simulation"}),
    "replay_accuracy": Small("--steps 2 --cases dqn-1", {"dqn-1"}, {"TRANSITIONS": 100}),
    "replay_vs_stock_sb3": Small(
        "--repeats 1 --steps 8 --algos dqn,crossq --sizes 64",
        {"dqn-64", "crossq-64"},
        {"WARM_STEPS": 8, "HYPERPARAMETERS": {"learning_starts": 4, "batch_size": 8}},
    ),
    "on_policy_vs_stock_sb3": Small(
        "--repeats 1 --env-steps 32",
        {"ppo", "ppo_images", "a2c", "trpo", "maskable_ppo", "recurrent_ppo", "recurrent_ppo_64"},
    ),
    "newcomers": Small(
        "--repeats 1 --seconds 0.001 --only ppo_normalized,sac,own_network",
        {"ppo_normalized", "sac", "own_network"},
        {
            "CASES": {
                "ppo_normalized": {"settings": {"n_steps": 8}},
                "sac": {"settings": {"learning_starts": 495}},  # of 500
                "own_network": {"settings": {"n_steps": 8}},
            }
        },
    ),
    "update_vs_limit": Small(
        "--repeats 1 --epochs 1 --calls 2 --cases arena-64,cartpole-256",
        {"arena-64", "cartpole-256"},
        {"BATCH_SIZE": 32, "CASES": {"arena-64": {"n_envs": 2, "n_steps": 8}, "cartpole-256": {"n_steps": 4}}},
    ),
    "growth": Small(
        "--repeats 1 --points 1 --n-steps 4 --seconds 0.001",
        {"envs", "agents", "policies", "independent", "width"},
        {"HYPERPARAMETERS": {"batch_size": 8, "n_epochs": 1}},
    ),
    "compiled_envs": Small(
        "--seconds 0.001 --envs CartPole-v1,FrozenLake-v1",
        {f"{env_id} {number}" for env_id in ("CartPole-v1", "FrozenLake-v1") for number in (1, 2)},
        {"NUM_ENVS": (1, 2)},
    ),
    "batched_arena": Small("--seconds 0.001", {"1", "2", "3", "4"}, {"NUM_ENVS": (1, 2, 3, 4)}),
    "fused_accuracy": Small(
        "--rollouts 1 --cases tanh-1", {"gradient of one minibatch", "weights after 1 rollouts"}, {"N_STEPS": 16}
    ),
    "workers": Small(
        "--repeats 1 --n-envs 2 --most 2 --seconds 0.01 --steps 5 --only waiting,overhead",
        {"waiting", "overhead"},
        {"TURNS": 1},
    ),
    "envs": Small("--envs arena,CartPole-v1 --env-steps 12", {"arena", "CartPole-v1"}),
    "fused_vs_torch_curves": Small(
        "--seeds 2 --timesteps 200",
        {"episode_return_mean"},
        {"HYPERPARAMETERS": {"n_envs": 2, "n_steps": 100, "batch_size": 100, "n_epochs": 1}},
    ),
    "memory_task": Small("--delays 3 --sides mlp,lstm --timesteps 512 --seeds 1", {"mlp-3", "lstm-3"}),
    "nearest_task": Small("--entities 5 --sides mlp,deep_sets --timesteps 512 --seeds 1", {"mlp-5", "deep_sets-5"}),
    "recall_task": Small(
        "--delays 4 --sides dqn-frames,dqn-lstm --timesteps 1000 --seeds 1", {"dqn-frames-4", "dqn-lstm-4"}
    ),
    "platform_task": Small("--sides hybrid,numbers --timesteps 512 --seeds 1", {"hybrid", "numbers"}),
    "two_step_game": Small("--timesteps 16 --seeds 1", {"vdn", "qmix"}),
    "team_task": Small("--algos sac --timesteps 500 --seeds 1", {"sac-central", "sac-own"}),
    "no_preset": Small("--games meet --timesteps 128 --seeds 1", {"meet"}, {"OF_SB3": {"n_steps": 64}}),
    "external_learning": Small(
        "--seeds 1 --envs CartPole-v1",
        {"CartPole-v1"},
        {"TIMESTEPS": {"CartPole-v1": 8}, "HYPERPARAMETERS": {"CartPole-v1": {"n_envs": 1, "n_steps": 8}}},
    ),
    "population": Small(
        "--envs arena --sides pbt,preset --timesteps 80 --seeds 1",
        {"arena, pbt", "arena, preset"},
        {
            "FIXED": {"n_steps": 20},
            "SETTINGS": {"n_envs": 2, "batch_size": 20, "n_epochs": 1, "env.max_timesteps": 15},
            "SIDES": {"pbt": {"sampler": "pbt", "trials": 2}, "preset": {"sampler": "random", "trials": 1}},
            **{"EVALUATIONS": 2, "EPISODES": 1, "FRESH": 1},
        },
    ),
    "learning_from_data": Small(
        "--seeds 1",
        {"cloning", "replay", "offline, Pendulum-v1", "offline, arena"},
        {
            "CLONING": {"timesteps": 40, "recorded": 2, "evaluated": 2},
            "REPLAY": {"recorded": 200, "timesteps": 200, "evaluated": 1},
            "OF_ARENA": {"n_envs": 2, "n_steps": 20, "batch_size": 20, "env.max_timesteps": 15},
            "OF_SAC": {"learning_starts": 10**6},
            "OFFLINE": {
                "Pendulum-v1": {**OFFLINE, "algo": "sac", "timesteps": 400, "settings": {"learning_starts": 10**6}},
                "arena": {**OFFLINE, "algo": "ppo", "timesteps": 40, "settings": {"env.max_timesteps": 15}},
            },
        },
    ),
    "references": Small("--envs CartPole-v1,arena --episodes 2", {"CartPole-v1", "arena"}, {"N_ENVS": 2}),
}

NO_SPEEDS = {"replay_accuracy", "fused_accuracy", "fused_vs_torch_curves", "memory_task", "no_preset", "population"}
NO_SPEEDS |= {"nearest_task", "recall_task", "two_step_game", "learning_from_data", "external_learning", "team_task"}
NO_SPEEDS |= {"references", "search_errors", "platform_task", "curves_vs_stock_sb3"}

Load = Callable[[str], ModuleType]


@pytest.fixture
def load(benchmark: Load, in_tmp: Path) -> Load:
    """Imports a benchmark; run folders and figures appear in a folder of the test."""
    return benchmark


def numbers(node: Any) -> Iterator[float]:
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from numbers(child)
    elif isinstance(node, (int, float)) and not isinstance(node, bool):
        yield node


def written(path: str = "figures.json") -> dict[str, Any]:
    report: dict[str, Any] = json.loads(Path(path).read_text())
    assert set(report) == {"benchmark", "setting", "results"}
    return report


def test_every_benchmark_has_a_run() -> None:
    tested = {*RUNS, *SHARED, *NEEDS_RAY, *WITH_ANOTHER_PYTHON, *WITH_A_RUN, *WITH_PACKAGES, "arena_cross_play"}
    assert {path.stem for path in BENCHMARKS.glob("*.py")} == tested


def test_explorers_and_hunters_of_several_runs_meet(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    for observe in ("cells", "coordinates"):
        settings = {"env.observe": observe}
        start(f"{observe}-0", 1, env="arena", settings=settings, policies="per_agent")
    load("arena_cross_play").main(["cells-0", "coordinates-0", "--episodes", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("cells", "coord"))] == 2 * ["cells", "coordinates"]


def put(module: ModuleType, constants: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace constants of a module; a mapping of a mapping changes fields of a dataclass or dictionary in it."""
    for name, value in constants.items():
        if not isinstance(value, Mapping):
            monkeypatch.setattr(module, name, value)
            continue
        held = getattr(module, name)
        for key, small in value.items():
            changed = small
            if isinstance(small, Mapping):
                changed = {**held[key], **small} if isinstance(held[key], dict) else replace(held[key], **small)
            monkeypatch.setitem(held, key, changed)


@pytest.mark.parametrize("name", RUNS)
def test_benchmark_writes_finite_figures_and_their_setting(
    name: str, load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, small = load(name), RUNS[name]
    put(module, small.constants, monkeypatch)
    module.main([*small.arguments.split(), "--json", "figures.json"])
    report = written()
    assert report["benchmark"] == name
    assert set(report["results"]) == small.results
    assert {"hyperparameters", "threads", "changes", "versions", "cores"} <= set(report["setting"])
    assert report["setting"]["versions"]["marl_sb3"]
    found = list(numbers(report["results"]))
    assert found
    assert all(math.isfinite(figure) for figure in found)
    if name not in NO_SPEEDS:
        speeds = [figure for result in report["results"].values() for figure in numbers(raw_of(result))]
        assert speeds
        assert min(speeds) > 0
    assert len(capsys.readouterr().out.splitlines()) >= 4


def test_a_tutorial_is_trained_and_played_on_both_sides(
    load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("newcomers")
    small = {"env_steps": 16, "stock": {"n_steps": 4, "batch_size": 8}}
    pond = {"env_kwargs": {"max_cycles": 8}, "ours": {"env": "waterworld", "settings": {"n_steps": 4, "n_envs": 2}}}
    game = {"ours": {"algo": "maskable_ppo", "settings": {"n_steps": 4, "n_envs": 2}}}
    put(
        module,
        {"EPISODES": 2, "TASKS": {"waterworld": {**small, **pond}, "connect_four": {**small, **game}}},
        monkeypatch,
    )
    module.main(["--tutorials", "waterworld,connect_four", "--repeats", "1", "--json", "figures.json"])
    results = written()["results"]
    assert set(results) == {"waterworld", "connect_four"}
    assert all(set(sides) == {"tutorial", "marl_sb3", "random"} for sides in results.values())
    assert all(math.isfinite(figure) for figure in numbers(results))
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]) == 8


def raw_of(result: Any) -> list[Any]:
    return [point["raw"] for point in result] if isinstance(result, list) else [result["raw"]]


def test_rllibs_environment_is_made_with_what_the_arena_imports(load: Load) -> None:
    code = "import sys; import marl_sb3.envs.arena; print(*{name.partition('.')[0] for name in sys.modules})"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    brought = {"gymnasium", "numpy", "farama_notifications", "typing_extensions"}  # by RLlib and PettingZoo
    needed = set(modules) & set(packages_distributions()) - brought - {"marl_sb3", "_distutils_hack"}
    assert needed <= set(load("arena_vs_rllib").REQUIREMENTS)


# --- measure ---------------------------------------------------------------------------------------------------------


def test_sides_take_turns(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def side(name: str) -> Callable[[int], float]:
        return lambda turn: order.append(f"{name}{turn}") or 10.0 + turn  # type: ignore[func-returns-value]

    measured = load("measure").take_turns({"a": side("a"), "b": side("b")}, 2)
    assert order == ["a0", "b0", "a1", "b1"]
    assert measured == {"a": [10.0, 11.0], "b": [10.0, 11.0]}
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == "measuring, turn 2 of 2: b"


@pytest.mark.parametrize(("less_is_better", "expected"), [(False, 4.0), (True, 0.25)])
def test_ratio_is_how_many_times_as_fast(less_is_better: bool, expected: float, load: Load) -> None:
    raw = {"base": [1.0, 9.0, 2.0], "other": [8.0, 7.0, 100.0]}
    comparison = load("measure").Comparison("steps/s", raw, "base", less_is_better)
    assert comparison.medians() == {"base": 2.0, "other": 8.0}
    assert comparison.ratios() == {"base": 1.0, "other": expected}


# --- many_agents -----------------------------------------------------------------------------------------------------


def test_many_agents_batched_and_single_agree(load: Load) -> None:
    module = load("many_agents")
    batched, single = module.BatchedManyAgents(2, agents=3), module.ManyAgents(agents=3)
    batched.reset([0, 1], [5, 6])
    seen, _ = single.reset(seed=6)
    for step in range(module.EPISODE_STEPS):
        np.testing.assert_array_equal(np.stack(list(seen.values())), batched.observations()[1])
        best = batched.observations()[1, :, :5].argmax(axis=1)
        best[2] = (best[2] + 1) % 5  # agent2 is wrong
        outcome = batched.step(np.stack([best, best]))
        seen, rewards, _, truncated, _ = single.step(dict(zip(single.possible_agents, best, strict=True)))
        assert rewards == {"agent0": 1.0, "agent1": 1.0, "agent2": 0.0}
        np.testing.assert_array_equal(outcome.rewards[1], [1.0, 1.0, 0.0])
        assert set(truncated.values()) == {bool(outcome.truncated[1, 0])} == {step + 1 == module.EPISODE_STEPS}


# --- references ------------------------------------------------------------------------------------------------------


def test_the_best_players_of_the_arena_get_the_most_that_100_steps_can_pay(load: Load) -> None:
    references = load("references")
    returns = references.play("arena", references.RULES["arena"]["best: both walk the same round"], 2, seconds=60)
    np.testing.assert_allclose(returns["agent1"], 100 * 1.0)
    np.testing.assert_allclose(returns["agent2"], 100 * -0.1, rtol=1e-5)


def test_particles_push_along_the_axis_on_which_they_would_miss_and_share_the_landmarks(load: Load) -> None:
    references, still = load("references"), np.zeros((3, 2))
    targets = np.array([[0.05, -0.05], [0.3, -0.5], [-0.6, 0.5]])
    assert references.go(targets, still).tolist() == [0, 3, 1]
    assert references.go(targets[1:2], np.array([[0.0, -1.0]])).tolist() == [2]  # it glides 0.4 down
    landmarks, others = [1, 0, 0, -1, 0, 1], [0.9, 0, 0, 1]  # the others are near the first and at the third
    assert references.spread(np.array([[0, 0, 0, 0, *landmarks, *others]])).tolist() == [3]


def test_pursuers_go_to_a_free_cell_beside_an_evader_and_wait_there(load: Load) -> None:
    seen = np.zeros((3, 7, 7, 3), dtype=np.float32)
    seen[:, 3, 3, 1] = 1  # itself
    seen[0, 3, 6, 2] = seen[1, 1, 3, 2] = seen[2, 3, 4, 2] = 1  # evaders: to the right, above, beside it
    seen[1, 2, 3, 1] = seen[1, 1, 2, 1] = 1  # other pursuers below and left of the one above
    (moves,) = load("references").surround({"pursuer_0": seen}, np.random.default_rng(0)).values()
    assert moves[[0, 2]].tolist() == [1, 4]
    assert moves[1] in (1, 3)


# --- arena_vs_rllib, with a stand-in for RLlib's Python --------------------------------------------------------------

STUB = """\
#!{python}
import json, sys, time
hyperparameters = json.loads(sys.argv[2])
print(json.dumps({{"versions": {{"ray": "0"}}}}), flush=True)
for iteration in range(1, 4):
    env_steps = iteration * hyperparameters["n_envs"] * hyperparameters["n_steps"]
    line = {{"env_steps": env_steps, "agent_steps_trained": 20 * env_steps, "seconds": 7.0 + 2.0 * iteration}}
    print(json.dumps({{**line, "episode_return_mean": None if iteration == 1 else 10.0 * iteration}}), flush=True)
    {behaviour}
"""


def stub(folder: Path, behaviour: str = "pass", text: str = STUB) -> str:
    path = folder / "python-with-rllib"
    path.write_text(text.format(python=sys.executable, behaviour=behaviour))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_rllib_comparison_measures_both_sides(
    load: Load, in_tmp: Path, capsys: pytest.CaptureFixture[str], server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load("processes"), "subprocess", forked_subprocess(server))
    arguments = ["--repeats", "1", "--iterations", "2", "--target-return", "-100", "--json", "figures.json"]
    assert load("arena_vs_rllib").main(["--rllib-python", stub(in_tmp), *arguments]) == 0
    results = written()["results"]
    throughput, reach = results["throughput"], results["reach"]
    assert throughput["raw"]["RLlib"] == [pytest.approx(4000 / 4.0)]  # the last two of three iterations
    assert throughput["agent_steps_trained_per_env_step"] == {"RLlib": 20.0, "marl_sb3": 20.0}
    assert throughput["versions"]["RLlib"] == {"ray": "0"}
    assert throughput["raw"]["marl_sb3"][0] > 0
    assert reach["hyperparameters"]["learning_rate"] == "lin_1.36e-3"  # the preset's
    for side in ("RLlib", "marl_sb3"):
        (run,) = reach["runs"][side]
        assert run["reached"]
        assert run["seconds"] > 0
    assert reach["runs"]["RLlib"][0]["episode_return_mean"] == 30.0
    assert reach["runs"]["marl_sb3"][0]["env_steps"] == 2000
    assert "agent steps trained per env step: RLlib 20.0, marl_sb3 20.0" in capsys.readouterr().out


@pytest.mark.parametrize("measurement", ["throughput", "reach"])
def test_a_crash_of_rllibs_side_is_shown(
    measurement: str, load: Load, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = stub(in_tmp, behaviour="raise SystemExit('no module named ray')")
    assert load("arena_vs_rllib").main(["--rllib-python", python, "--only", measurement]) == 1
    errors = capsys.readouterr().err
    assert "rllib_side.py" in errors
    assert "ended with exit code 1:\nno module named ray" in errors


# --- against_jax, with a stand-in for JAX's Python -------------------------------------------------------------------

JAX_STUB = """\
#!{python}
import json, sys
print(json.dumps({{"versions": {{"jax": "0"}}}}))
for case in json.loads(sys.argv[2]):
    cost = {{"case": case["name"], "env_steps": 1000, "seconds": 0.01, "cpu_s": 0.02, "preparing_s": 3.0}}
    print(json.dumps(cost if "--seconds" in sys.argv else {{"env_steps": 1000, "episode_return_mean": 1000.0}}))
"""


def test_jax_comparison_measures_all_sides(
    load: Load, in_tmp: Path, capsys: pytest.CaptureFixture[str], server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load("processes"), "subprocess", forked_subprocess(server))
    module = load("against_jax")
    small = {"CASES": {"cartpole-4": {"hyperparameters": module.cartpole(2, 8, 1).hyperparameters}}}
    put(module, {**small, "TARGETS": {"arena": -100.0}, "ENVS": (1, 2), "MOST_ROWS": 32}, monkeypatch)
    options = ["--repeats", "1", "--seconds", "0.001", "--cases", "cartpole-4", "--reach-envs", "arena"]
    (in_tmp / "rllib").mkdir()
    pythons = ["--jax-python", stub(in_tmp, text=JAX_STUB)]
    pythons += ["--rllib-python", stub(in_tmp / "rllib", 'hyperparameters["n_timesteps"]')]  # which it needs
    assert module.main([*pythons, *options, "--figure", ".", "--json", "figures.json"]) == 0
    results = written()["results"]
    *speeds, reach, figure = results.values()
    for speed in speeds:
        assert speed["raw"]["JAX"] == [pytest.approx(10.0)]
        assert speed["processor time"]["raw"]["JAX"] == [pytest.approx(20.0)]
        assert speed["raw"]["marl_sb3"][0] > 0
    assert [run["env_steps"] for runs in reach["runs"].values() for run in runs] == [1000, 1000, 2000]
    assert list(figure["fastest"]) == ["JAX", "marl_sb3", "stock SB3", "RLlib"]
    assert figure["fastest"]["JAX"] == [pytest.approx(100_000.0)] * 2
    assert figure["fastest"]["RLlib"] == [pytest.approx(2 * 32 / 4.0)] * 2
    assert Path("against_jax.png").stat().st_size > 0
    assert "at n_steps 100" in capsys.readouterr().out


# --- waterworld_vs_pettingzoo, with a stand-in for PettingZoo's Python ----------------------------------------------


def pettingzoo_arrays(in_range: np.random.Generator) -> dict[str, Any]:
    """What PettingZoo's side writes of two episodes, of which nothing is true but the shapes."""
    shapes = {"observations": (4, 2, 242), "returns": (2, 2), "counts": (2, 3, 2), "lengths": (2,)}
    shapes |= {"positions": (1, 2, 17), "velocities": (1, 2, 17), "actions": (1, 2, 2), "rewards": (1, 2)}
    shapes |= {"seen": (1, 2, 242)}
    arrays = {name: in_range.random(shape) for name, shape in shapes.items()}
    moved, begins = np.zeros((1, 15), dtype=bool), np.ones(1, dtype=bool)
    return {**arrays, "moved": moved, "begins": begins, "env_step_s": 0.001, "versions": '{"pettingzoo": "1.25.0"}'}


def test_waterworld_is_compared_with_pettingzoos(load: Load, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("side.npz", **pettingzoo_arrays(np.random.default_rng(0)))
    python = stub(in_tmp, text=f"#!/bin/sh\ncp {in_tmp}/side.npz $3\n")
    arguments = ["--pettingzoo-python", python, "--episodes", "2", "--pursuers", "2", "--policies", "chase"]
    arguments += ["--seconds", "0.01"]
    assert load("waterworld_vs_pettingzoo").main([*arguments, "--env-steps", "20", "--json", "figures.json"]) == 0
    results = written()["results"]
    assert list(results) == ["2 pursuers, accel 0.01, chase", "2 pursuers, accel 0.5, chase", "2 pursuers, speed"]
    assert all(math.isfinite(figure) for figure in numbers(results))
    assert results["2 pursuers, speed"]["raw"]["PettingZoo 1.25"] == [1000.0, 1000.0]
    found = results["2 pursuers, accel 0.5, chase"]
    assert set(found["numbers"]) == {"return", "food_encounters", "captures", "poison_hits", "episode length"}
    assert len(found["observations"]) == 10
    assert "touched poison" in capsys.readouterr().out


def test_equal_distributions_look_equal_and_others_do_not(load: Load) -> None:
    checks, rng = load("waterworld_checks"), np.random.default_rng(0)
    one, same, other = rng.normal(0, 1, (50, 200)), rng.normal(0, 1, (50, 200)), rng.normal(0.5, 1, (50, 200))
    assert (np.abs(checks.z_scores(one, same)) > 2).mean() < 0.1
    assert (np.abs(checks.z_scores(one, other)) > 2).mean() > 0.5
    assert checks.ks_distance(one, same) < 0.02
    assert 0.18 < checks.ks_distance(one, other) < 0.21  # 0.1974 for these two normal distributions
    assert checks.z_scores(np.ones((2, 2)), np.array([[1.0, 2.0]] * 2)).tolist() == [0.0, 99.0]


# --- serving_load ----------------------------------------------------------------------------------------------------


def test_servers_are_measured_by_their_clients(
    load: Load, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def served(run: str, *_: object) -> Iterator[int]:  # in this process: it has imported everything
        with policy_server(run, reload_s=0) as server:
            yield int(server.address.rpartition(":")[2])

    module = load("serving_load")
    put(module, {"served": served, "WARM_UP_S": 0.02, "ROWS": (1,)}, monkeypatch)
    settings = {"n_steps": 4, "batch_size": 4, "policy_kwargs": {"net_arch": [4]}}
    marl_sb3.train("arena", timesteps=4, n_envs=1, seed=1, settings=settings, run_dir=in_tmp / "run")
    options = ["--sides", "serve", "--clients", "2", "--seconds", "0.3", "--repeats", "1", "--json", "figures.json"]
    module.main([str(in_tmp / "run"), *options])
    results = written()["results"]
    assert set(results) == {"serve, 2 x 1"}
    for (found,) in results.values():
        assert found["requests_per_s"] > 0
        assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert "serve, 2 x 1" in capsys.readouterr().out


# --- serving_soak ----------------------------------------------------------------------------------------------------


def test_a_soak_loses_nothing_while_checkpoints_come_and_the_server_ends(
    load: Load, in_tmp: Path, server: ForkServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load("serving_soak")
    put(module, {"RELOAD_S": 0.05, "DRAIN_S": 0.3, "DAMAGED": 3, "SAMPLES": 4, "QUESTIONS": 4}, monkeypatch)
    monkeypatch.setattr(module, "subprocess", forked_subprocess(server))
    settings = {"n_steps": 4, "batch_size": 4, "policy_kwargs": {"net_arch": [4]}, "checkpoints.every": 1}
    marl_sb3.train("arena", timesteps=8, n_envs=1, seed=1, settings=settings, run_dir=in_tmp / "run")
    options = ["--minutes", "0.02", "--every", "0.25", "--rate", "200", "--json", "figures.json"]
    assert module.main([str(in_tmp / "run"), *options]) == 0
    found = written()["results"]["soak"]
    assert all(math.isfinite(figure) for figure in numbers(found))
    assert found["answers"] > 20
    assert found["lost"] == found["wrong"] == 0
    assert found["reloads"]["done"] >= 2
    assert found["reloads"]["failed"] >= 1
    assert found["damaged"] >= 1
    assert "exit_code" in capsys.readouterr().out


def test_a_soak_sees_answers_of_another_checkpoint(load: Load, in_tmp: Path) -> None:
    module = load("serving_soak")
    publisher = module.Publisher([in_tmp, in_tmp], in_tmp)
    soak = module.Soak(0, [b""], [[1.0], [2.0]], publisher, rate=1.0)
    soak.check(0, {"checkpoint": "ckpt-000003", "values": {"a": 2.00001}})
    assert not soak.wrong
    soak.check(0, {"checkpoint": "ckpt-000004", "values": {"a": 2.0}})
    assert soak.wrong == ["ckpt-000004: 2.0, not 1.0"]


# --- env_packages, with envs of installed packages -------------------------------------------------------------------


def test_envs_of_packages_have_rows_that_say_what_each_command_did(
    load: Load, in_tmp: Path, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load("env_packages")
    lines = {name: {"install": "numpy", "env": env} for name, env in [("a", "arena"), ("b", "nowhere-v0"), ("c", "")]}
    Path("table.yaml").write_text(json.dumps(lines))
    Path("page.md").write_text(f"# Page\n\n{module.HEAD}\n| --- |\n| b | old |\n| c | as it was |\n\nThe end.\n")
    here = {"TABLE": Path("table.yaml"), "python_of": lambda _: sys.executable, "SMALL": ["n_steps=8", "n_epochs=1"]}
    here |= {"install": lambda *_: "ok", "subprocess": forked_subprocess(server)}
    put(module, here, monkeypatch)
    module.main(["a", "b", "--page", "page.md", "--folder", "made", "--json", "figures.json"])
    walked, lost = (each["outcome"] for each in written()["results"].values())
    assert walked == dict.fromkeys(module.COMMANDS, "ok")
    assert Path("made/a/video.gif").stat().st_size > 0
    assert list(lost) == ["doctor", "train"]
    assert lost["train"].startswith("error: unknown env 'nowhere-v0'")
    assert [line[:5] for line in Path("page.md").read_text().splitlines()[4:7]] == ["| a |", "| b |", "| c |"]
    assert Path("page.md").read_text().endswith("| c | as it was |\n\nThe end.\n")
