"""`python -m marl_sb3.tune`, as a user types it."""

from __future__ import annotations

import csv
import os
import pty
import re
import signal
from pathlib import Path

import pytest
from forked import ForkServer
from refusals import refusal
from waiting import wait_for

import marl_sb3
from marl_sb3.tools.tuning.api import prepare_study
from marl_sb3.tools.tuning.search import Search
from marl_sb3.tools.tuning.space import parse_space
from marl_sb3.tune import main

TINY = [
    "--set",
    "n_timesteps=80",
    "--evaluations",
    "2",
    "--evaluation-episodes",
    "1",
    "--trials",
    "2",
    "--pruner",
    "none",
]
TINY += ["--set", "n_envs=2", "--set", "n_steps=20", "--set", "batch_size=20", "--set", "n_epochs=1"]
MODULE = ["-m", "marl_sb3.tune"]
pytestmark = pytest.mark.usefixtures("quick_searches")


def test_a_search_prints_its_trials_and_leaves_its_files(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    far_apart = ["--set", "learning_rate=0.1", "--set", "n_epochs=5"]  # trials with the same values have no finalists
    assert main([*TINY, *far_apart, "--study", "mine", "--confirm-seeds", "2", "--over", "best"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    folder = Path("runs", "tune", "arena", "mine")
    assert lines[0] == f"new study mine: {folder}"
    assert lines[1].startswith(
        "2 trials of up to 80 env steps, then the best 2 and the preset with up to 2 fresh seeds"
    )
    assert [line for line in lines if re.match(r"trial \d: COMPLETE -?\d+\.\d\d \(gamma=", line)] == lines[2:4]
    assert any(line.startswith("finalists, trained with fresh seeds: ") for line in lines)
    assert any(line.startswith("preset ") for line in lines)
    assert lines[-5:] == [*(str(folder / name) for name in ("trials.csv", "confirm.csv", "best.yml", "report.html")),
        str(folder)]  # fmt: skip
    assert "\x1b" not in captured.out
    # Again, with nothing said but the name: what is done is done.
    assert main(["--study", "mine"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"continuing study mine, 2 of 2 trials done: {folder}"
    assert main(["--study", "mine", "--quiet"]) == 0
    assert capsys.readouterr().out == f"{folder}\n"
    best = marl_sb3.train(hparams=folder / "best.yml", run_dir="best", timesteps=80)
    assert best.result is not None


def test_trials_whose_envs_are_stepped_by_workers_are_those_without(in_tmp: Path) -> None:
    tables = []
    for n_workers in (0, 2):
        settings = ["--trials", "1", "--seed", "1", "--quiet", "--set", f"n_workers={n_workers}"]
        assert main([*TINY, *settings, "--study", f"{n_workers}"]) == 0
        (row,) = csv.DictReader(Path("runs", "tune", "arena", f"{n_workers}", "trials.csv").read_text().splitlines())
        tables.append({name: row[name] for name in ("state", "value", "learning_rate", "seed", "env_steps")})
    assert tables[0] == tables[1]
    assert tables[0]["state"] == "COMPLETE"


def test_defaults_in_the_help_are_those_of_a_search() -> None:
    search = Search("arena", parse_space({"gamma": {"uniform": [0.8, 0.9]}}, "space"), "s")
    shown = " ".join(main.parser().format_help().split())
    for option in ("trials", "objective", "mode", "evaluations", "evaluation-episodes", "seed"):
        default = getattr(search, option.replace("-", "_"))
        assert re.search(rf"--{option} [A-Z]+ [^-]*default: {default}\b", shown), option


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "--workers is 0; accepted: an integer of at least 1"),
        (["--confirm-seeds", "-1"], "--confirm-seeds is -1; accepted: an integer of at least 0"),
        (["--confirm-seeds", "1"], "--confirm-seeds is 1; accepted: 0, or at least 2, for an interval"),
        (["--objective", "agent1,"], "--objective is 'agent1,'; accepted: different names, A or A,B"),
        (["--objective", "agent1,agent2", "--mode", "max,min,max"], "--mode is 'max,min,max'; accepted: one of max"),
        (["--objective", "agent1,agent2", "--pruner", "asha"], "--pruner is 'asha'; accepted with several objectives"),
        (["--confirm-best", "0"], "--confirm-best is 0; accepted: an integer of at least 1"),
        (["--trials", "many"], "argument --trials: received 'many'; accepted: an integer, such as 100000, 1e5 or 100k"),
        (["--space", "nowhere.yml"], "cannot read nowhere.yml: No such file or directory"),
        (
            ["--storage", "mysql://nobody:secret@localhost/x"],
            "--storage mysql://nobody:***@localhost/x cannot be opened",
        ),
        (["--grid", "bach_size=64,128"], "--grid bach_size: unknown hyperparameter 'bach_size' of PPO; did you mean"),
        (["--grid", "batch_size=1,64"], "--grid batch_size: batch_size is 1; accepted: an integer of at least 2"),
        (["--set", "bach_size=64"], "--set bach_size: unknown hyperparameter"),
        (["--n-envs", "0"], "--n-envs is 0; accepted: an integer of at least 1"),
        (["--device", "gpu"], "--device: device is 'gpu'; accepted: auto, cpu, cuda"),
        (["--vectorizer", "fast"], "unknown vectorizer 'fast'; accepted: auto"),
        (["arenaa"], "unknown env 'arenaa'; did you mean arena"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    arguments: list[str], message: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal(main, arguments, capsys)
    assert message in error
    assert "secret" not in error
    assert not list(in_tmp.glob("runs/tune/*/*/trials"))


def test_a_search_in_which_nothing_was_trained_has_failed(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("breaks.py").write_text(
        "import os\nfrom marl_sb3.envs.arena import ArenaEnv\n"
        "class Breaks(ArenaEnv):\n"
        "    def step(self, actions):\n"
        "        raise ValueError('the disk is on fire')\n"
    )
    assert main(["breaks:Breaks", *TINY, "--study", "s"]) == 1
    captured = capsys.readouterr()
    last = captured.err.splitlines()[-1]
    assert last.startswith("error: no trial was trained to its end: 2 FAIL; the last error: ")
    assert "the disk is on fire" in last
    paths = [Path("runs", "tune", "breaks_Breaks", "s", "trials", f"{n:05d}", "traceback.txt") for n in range(2)]
    assert last.endswith(f"; see {paths[1]}")
    shown = captured.out.splitlines()
    for path in paths:
        assert path.is_file()
        assert f"  {path}" in shown  # in the table
        assert [line for line in shown if line.startswith("trial ") and line.endswith(f"; see {path}")]
    assert "FAIL" in captured.out


def test_a_name_that_may_be_a_typo_begins_no_study(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = [*TINY, "--trials", "1"]
    for name in ("wide-net", "lr-1", "lr-2"):  # names that differ in digits only are no typos
        prepare_study(**main.values([*tiny, "--study", name])["options"].of_study())
    for arguments in (["--study", "wide-nte"], ["arena", *tiny, "--study", "widenet"]):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert (
            f"there is no study '{arguments[-1]}'; did you mean wide-net? To begin a new one, add --new-study" in error
        )
    assert main([*tiny, "--study", "wide-net", "--new-study"]) == 2
    assert "study 'wide-net' exists in " in capsys.readouterr().err
    prepare_study(**main.values([*tiny, "--study", "wide-nte", "--new-study"])["options"].of_study())
    assert {path.name for path in Path("runs/tune/arena").iterdir()} == {"wide-net", "lr-1", "lr-2", "wide-nte"}


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, "--workers 2 "), (signal.SIGTERM, "")])
def test_an_interrupted_search_tells_how_to_go_on(
    number: signal.Signals, workers: str, in_tmp: Path, server: ForkServer
) -> None:
    options = f"--study s {workers}--confirm-seeds 2"
    arguments = ["--timesteps", "400000", "--trials", "3", *options.split()]
    arguments += ["--set", "n_envs=2", "--set", "batch_size=100"]
    search = server.run([*MODULE, *arguments], "out", "err")
    folder = in_tmp / "runs" / "tune" / "arena" / "s"
    wait_for((folder / "trials" / "00000" / "result.jsonl").exists)
    search.send_signal(number)
    assert search.wait() == 130
    out, error = Path("out").read_text(), Path("err").read_text()
    assert error.splitlines()[-1] == "interrupted"
    assert f"continue with: python -m marl_sb3.tune arena {options}" in out.splitlines()
    assert re.search(r"^ +0  INTERRUPTED ", out, re.MULTILINE)
    assert (folder / "trials.csv").is_file()


def test_a_terminal_sees_what_is_running(in_tmp: Path, server: ForkServer) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "LINES": "30", "TERM": "xterm"}
    # Its trials last until the terminal has seen one.
    arguments = ["crashing_envs:SlowUntil", *TINY, "--set", f"env.seen={in_tmp / 'seen'}", "--no-confirm"]
    search = server.run([*MODULE, *arguments], os.ttyname(theirs), environment=environment)
    os.close(theirs)
    text = ""
    while True:
        try:
            text += os.read(ours, 65536).decode(errors="replace")
        except OSError:  # closed at the other end
            break
        if re.search(r"running  trial 0: evaluation \d+ ", text):
            Path("seen").touch()
    os.close(ours)
    assert search.wait() == 0, text
    assert "0 of 2 trials" in text
    assert re.search(r"running  trial 0: evaluation \d+ ", text)
    assert re.search(r"best     trial \d: COMPLETE ", text)
    assert re.search(r"\* \d", text)
