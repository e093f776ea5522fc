"""A run that is killed, wherever and however often, and resumed is the run that nobody disturbed."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attempts import Attempt, kill
from forked import ForkServer
from kills import Kill, Trial, campaign, command, plan
from kinds import ITERATIONS, KINDS, N_ENVS, N_STEPS, PLAIN, REFUSAL
from run_records import differences, events
from shims import GENERATORS

from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint, write_checkpoint

References = Callable[[str], Path]
Attempts = Callable[[str], Attempt]
BATCHED = "shared-batched"
LATE = 240  # calls of saves, after some checkpoints

# Of one process ten, four of them inside a save, one of them of `python -m marl_sb3.train` itself; and of any process.
PORTIONS = {
    BATCHED: [Kill("save"), Kill("time"), Kill("save", real=True)],
    "mapped-sync": [Kill("save"), Kill("cut"), Kill("start")],
    "mapped-batched": [Kill("time"), Kill("time")],
    "per_agent-sync": [Kill("time"), Kill("save")],
    "workers-sync": [Kill("any")] * 3,
    "search": [Kill("any")],
}


@pytest.mark.parametrize("kind", PORTIONS)
def test_what_was_killed_leaves_what_nobody_disturbed(
    kind: str, server: ForkServer, reference_of: References, tmp_path: Path
) -> None:
    kills = PORTIONS[kind]
    tally = Trial(KINDS[kind], reference_of(kind), tmp_path, server, random.Random(kind)).carry_out(kills)
    assert tally.mismatches == []
    assert tally.counts["kills"] == len(kills)
    assert tally.counts["runs"] >= 1


@pytest.mark.parametrize(
    ("broken", "kind", "shows_in"),
    [
        ("torch", BATCHED, "/tensors/policy-000/"),
        ("numpy", "mapped-sync", "/tensors/policy-000/"),
        ("env", BATCHED, "/state/env/"),
    ],
)
def test_a_generator_that_is_not_brought_back_is_found_out(
    broken: str, kind: str, shows_in: str, attempt: Attempts
) -> None:
    assert broken in GENERATORS
    training = attempt(kind)
    assert training.begin(**kill("save", LATE)).wait() == -9
    assert training.resume(**{"break": broken}) == 0
    assert shows_in in "\n".join(training.differences())


@pytest.mark.parametrize(
    ("kills", "events_once"),
    [([("save", LATE), ("cut", 1)], True), ([("save", LATE), ("cut", 3)], True), ([("policies", 1)], False),
     ([("policies", 3)], False)],
    ids=str,
)  # fmt: skip
def test_a_run_may_be_killed_while_its_logs_are_cut_or_before_its_policies_are_saved(
    kills: list[tuple[str, int]], events_once: bool, attempt: Attempts
) -> None:
    training = attempt(BATCHED)
    first, *others = kills
    assert training.begin(**kill(*first)).wait() == -9
    for each in others:
        assert training.resume(**kill(*each)) == -9
    if events_once:  # TensorBoard may be looking
        assert set(events(training.run).values()) == {1}
    assert training.resume() == 0
    assert training.differences() == []


def test_a_run_that_was_killed_before_its_first_checkpoint_says_how_to_start_anew(
    attempt: Attempts, tmp_path: Path
) -> None:
    training = attempt(BATCHED)
    assert training.begin(**kill("save", 5)).wait() == -9
    assert training.resume() == 2
    config = training.run / "config.yaml"
    assert training.said == REFUSAL.format(folder=training.run / "checkpoints", config=config) + " it anew\n"
    again = ["--hparams", str(config), "--run-dir", str(tmp_path / "again"), "--quiet"]
    assert training.start(again, {}).wait() == 0
    assert training.differences(tmp_path / "again") == []


def test_what_a_killed_save_leaves_goes_with_the_next_and_is_never_a_checkpoint(attempt: Attempts) -> None:
    training = attempt(BATCHED)
    assert training.begin(**kill("save", 100)).wait() == -9  # in the second save
    checkpoints = CheckpointFolder(training.run / "checkpoints")
    left = [path.name for path in checkpoints.path.iterdir() if path.name not in checkpoints.names()]
    assert [name[:17] for name in left] == [".unfinished-ckpt-"]
    assert checkpoints.load().name == checkpoints.names()[-1]
    assert training.resume() == 0
    assert sorted(path.name for path in checkpoints.path.iterdir()) == checkpoints.names()
    (checkpoints.path / ".unfinished-former-ckpt-000006").mkdir()  # killed in the last save, when the new one stood
    assert training.resume() == 0
    assert training.differences() == []


@pytest.mark.proof
def test_two_hundred_kills_change_nothing() -> None:
    assert command(campaign, [], kills=200) == 0


def test_a_plan_has_kills_of_all_kinds_and_a_third_of_those_of_one_process_inside_saves() -> None:
    portions = list(plan(1000, random.Random(0)))
    assert sum(len(kills) for _, kills in portions) == 1000
    assert {kind for kind, _ in portions} == {*KINDS}
    hows = [kill.how for kind, kills in portions for kill in kills if kind in PLAIN]
    assert {*hows} == {"save", "cut", "start", "time"}
    assert hows.count("save") == pytest.approx(len(hows) / 3, rel=0.1)


# --- The comparison itself -------------------------------------------------------------------------------------------


def double_a_row(run: Path) -> None:
    text = (run / "result.jsonl").read_text()
    (run / "result.jsonl").write_text(text + text.splitlines(keepends=True)[-1])


def change_a_row(run: Path) -> None:
    lines = (run / "progress.csv").read_text().splitlines(keepends=True)
    (run / "progress.csv").write_text("".join([*lines[:5], "9" + lines[5], *lines[6:]]))


def double_the_events(run: Path) -> None:
    path = next(run.glob("events.out.tfevents.*"))
    shutil.copy(path, f"{path}.new")


def lose_an_event(run: Path) -> None:
    path = max(run.glob("events.out.tfevents.*"))
    path.write_bytes(path.read_bytes()[:-20_000])


def change_a_weight(run: Path) -> None:
    checkpoint = CheckpointFolder(run / "checkpoints").load()
    tensors = {name: dict(group) for name, group in checkpoint.tensors.items()}
    name, weight = next(iter(tensors["policy-000"].items()))
    tensors["policy-000"][name] = np.nextafter(weight, np.float32(2))
    about = json.loads((run / "checkpoints" / checkpoint.name / "manifest.json").read_text())["about"]
    write_checkpoint(run / "checkpoints" / checkpoint.name, checkpoint.state, tensors, about)


def lose_the_policies(run: Path) -> None:
    shutil.rmtree(run / "policies")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (double_a_row, f"result.jsonl has {ITERATIONS + 1} rows, not {ITERATIONS}"),
        (change_a_row, "progress.csv, row 5: iteration is '95', was '5'"),
        (double_the_events, "is wrong or there twice"),
        (lose_an_event, f"at step {ITERATIONS * N_ENVS * N_STEPS} is missing, 1 times"),
        (change_a_weight, "latest checkpoint: /tensors/policy-000/"),
        (lose_the_policies, "policies: shared.zip is missing"),
    ],
)
def test_a_difference_is_found(
    change: Callable[[Path], None], expected: str, reference_of: References, tmp_path: Path
) -> None:
    reference, run = reference_of(BATCHED), tmp_path / "run"
    shutil.copytree(reference, run)
    assert KINDS[BATCHED].differences(reference, run) == []
    change(run)
    assert KINDS[BATCHED].differences(reference, run) != []
    assert expected in "\n".join(differences(reference, run))


def test_the_reference_has_a_checkpoint_of_its_end(reference_of: References) -> None:
    newest = reference_of(BATCHED) / "checkpoints" / f"ckpt-{ITERATIONS:06}"
    assert read_checkpoint(newest).about.integer("iteration") == ITERATIONS
