"""What a benchmark's file asks for, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refusal

from marl_sb3 import startup
from marl_sb3.benchmark import main
from marl_sb3.tools.benchmarking.plan import Benchmark, read_benchmark

FILE = """
algos:
  ppo: {learning_rate: 2.0e-4}
  mappo: {algo: ppo, central_critic: true}
envs:
  arena: {n_timesteps: 2000, gamma: 0.8, learning_rate: 0.1}
  small: {env: arena, env.height: 4, seeds: [7], algos: {ppo: {gamma: 0.7}}, presets: false}
seeds: 2
settings: {n_timesteps: 1k, gamma: 0.9}
"""


def of_text(text: str) -> Benchmark:
    Path("some.yml").write_text(text)
    return read_benchmark("some.yml")


def test_the_last_of_all_settings_wins_and_each_seed_waits_for_the_one_before(in_tmp: Path) -> None:
    benchmark = of_text(FILE)
    assert [str(training) for training in benchmark.trainings] == [
        *("arena, ppo, seed 0", "arena, mappo, seed 0", "small, ppo, seed 7"),
        *("arena, ppo, seed 1", "arena, mappo, seed 1"),
    ]
    ppo, mappo, small = (training.config for training in benchmark.trainings[:3])
    assert (ppo.n_timesteps, ppo.hyperparameters["gamma"], ppo.hyperparameters["learning_rate"]) == (2000, 0.8, 2e-4)
    assert (mappo.algo, mappo.hyperparameters["learning_rate"], mappo.central.central_critic) == ("ppo", 0.1, True)
    assert (small.n_timesteps, small.hyperparameters["gamma"], small.env_kwargs) == (1000, 0.7, {"height": 4})
    assert "n_epochs" in ppo.hyperparameters  # of the preset
    assert "n_epochs" not in small.hyperparameters
    assert benchmark.folder == in_tmp / "runs" / "benchmark-some"
    assert benchmark.trainings[2].folder == benchmark.folder / "small" / "ppo" / "seed-7"


@pytest.mark.parametrize("name", ["quick", "presets", "teams"])
def test_those_of_the_package_are_accepted_without_their_envs(name: str) -> None:
    assert len(read_benchmark(name).trainings) >= 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[arena]", "some.yml:  is ['arena']; accepted: a mapping"),
        ("algos: [ppo]", "some.yml: envs is missing; accepted: a list of names, or a mapping from names to settings"),
        ("envs: [arena]", "some.yml: algos is missing; accepted: a list of names"),
        ("{algos: [ppo], envs: [arena], seed: 1}", "some.yml: seed is no key of a benchmark; accepted: algos, envs"),
        ("{algos: [ppo], envs: {arena: 5}}", "some.yml: envs.arena is 5; accepted: a mapping"),
        ("{algos: [a/b], envs: [arena]}", "some.yml: algos is 'a/b'; accepted: a printable name of at most 220 bytes"),
        ("{algos: {'..': {algo: ppo}}, envs: [arena]}", "some.yml: algos is '..'; accepted: a printable name"),
        ("{algos: [ppo], envs: {arena: {algos: {nul: {}}}}}", "some.yml: envs.arena.algos is 'nul'; accepted: a print"),
        (f"{{algos: [ppo], envs: [{'x' * 221}]}}", f"some.yml: envs.{'x' * 221} is '{'x' * 219}; accepted: a printab"),
        ("{algos: [pop], envs: [arena]}", "some.yml, algos.pop: unknown algorithm 'pop'"),
        ("{algos: [ppo], envs: {a/b: , a_b: }}", "some.yml: envs.a_b has the same folder as a/b, a_b; accepted: anoth"),
        ("{algos: [ppo], envs: [arena], seeds: 0}", "some.yml: seeds is 0; accepted: a number of seeds of at least 1"),
        ("{algos: [ppo], envs: {arena: {seeds: [1, 1]}}}", "some.yml: envs.arena.seeds is [1, 1]; accepted: a number"),
        ("{algos: [ppo], envs: {arena: {seeds: [-1]}}}", "some.yml: envs.arena.seeds is -1; accepted: an integer of"),
        ("{algos: [ppo], envs: [arena], episodes: 0}", "some.yml: envs.arena.episodes is 0; accepted: an integer of"),
        (
            "{algos: [ppo], envs: [arena], checkpoint: 3}",
            "some.yml: envs.arena.checkpoint is 3; accepted: latest or best",
        ),
        ("{algos: [ppo], envs: {arena: {gamma: 2}}}", "some.yml, envs.arena.gamma: gamma is 2; accepted: a number"),
        ("{algos: {ppo: {gama: 1}}, envs: [arena]}", "some.yml: arena, ppo: some.yml, algos.ppo.gama: "),
        ("{algos: [ppo], envs: [arena], settings: {seed: 1}}", "some.yml, settings.seed: accepted: seeds"),
        ("{algos: [ppo], envs: {arena: {presets: 1}}}", "arena, ppo: presets is 1; accepted: true or false"),
        ("{algos: [ppo], envs: {arena: {against: [me]}}}", "some.yml: envs.arena.against has me; accepted: a list of"),
        ("{algos: [ppo], envs: {arena: {references: {A: b}}}}", "envs.arena.references.A is 'b'; accepted: a number"),
        ("{algos: [ppo], envs: ['a:B']}", "some.yml: envs.a:B wants to import 'a:B'; accepted: with --trust-file"),
        (
            "{algos: [ppo], envs: [arena], settings: {callbacks: ['a:B']}}",
            "some.yml, settings.callbacks: wants to impo",
        ),
        ("{algos: [ppo], envs: [nothing]}", "some.yml: nothing, ppo: unknown env 'nothing'"),
        (": :", "some.yml is not valid YAML"),
    ],
)
def test_what_is_wrong_is_refused_with_file_and_key_before_anything_is_written(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    Path("some.yml").write_text(text)
    assert message in refusal(main, ["some.yml"], capsys)
    assert [path.name for path in in_tmp.iterdir()] == ["some.yml"]


def test_names_do_not_lead_out_of_the_folder(in_tmp: Path) -> None:
    first = of_text("{algos: [ppo], envs: {'..': {env: arena}}}").trainings[0]
    assert first.folder.resolve().relative_to(in_tmp / "runs" / "benchmark-some").parts == ("_._", "ppo", "seed-0")


def test_a_folder_of_other_things_is_left_as_it_is(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("some.yml").write_text("{algos: [ppo], envs: [arena]}")
    words = "--folder is ., which holds no benchmark, but some.yml; accepted: a new or empty folder, or that of a bench"
    assert words in refusal(main, ["some.yml", "--folder", "."], capsys)
    assert [path.name for path in in_tmp.iterdir()] == ["some.yml"]


def test_curves_name_the_extra_that_is_missing(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "find_spec", lambda name: None)
    Path("some.yml").write_text("{algos: [ppo], envs: [arena]}")
    assert "--curves png needs matplotlib, which is not installed" in refusal(
        main, ["some.yml", "--curves=png"], capsys
    )
    assert "page.html needs plotly, which is not installed" in refusal(main, ["some.yml", "--out=page.html"], capsys)
    assert "accepted: a file that ends with .html" in refusal(main, ["some.yml", "--out=page.png"], capsys)
