"""A command line that is made of the parameters of a function."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from msgspec import Meta

from marl_sb3.cli import Bare, Section, Setting, command, documented, given_options, require_resumable, settings_in
from marl_sb3.errors import ConfigError

SEED = Setting("seed")


@dataclass(frozen=True)
class Place:
    """A record of options."""

    host: Annotated[str | None, "--host HOST", "`name` of {what}; default: none"]
    loud: Annotated[bool, "--loud", "default: off"]


@command("play RUN ... [options]", "Play.", "the end")
def play(
    runs: Annotated[Sequence[str], "RUN", "runs"],
    *,
    out: Annotated[Path | None, "--out FILE", "a file; default: none"],
    speed: Annotated[float, Meta(ge=1), "--speed X", "steps per second; default: 5"] = 5.0,
    mode: Annotated[Literal["max", "min"], Section("how"), "--mode M", "default: max"] = "max",
    names: Annotated[list[str] | None, "--names A,B", "default: none", lambda text: text.split(",")],
    tags: Annotated[Sequence[int], "--tag N", "may be repeated; default: none"],
    place: Annotated[Place, {"what": "the server"}],
    ray: Annotated[str | None, "--ray ADDRESS", "default: none", Bare("local")],
    seed: Annotated[int | None, SEED],
) -> int:
    return len(runs)


def test_types_and_defaults_make_the_options() -> None:
    nothing = {"out": None, "speed": 5.0, "mode": "max", "names": None, "tags": [], "ray": None, "seed": None}
    assert play.values(["a"]) == {**nothing, "runs": ["a"], "place": Place(None, loud=False)}
    line = "a b --out c --speed 2 --mode min --names x,y --tag 1 --tag 1k --host h --loud --seed 3 --ray"
    assert play.values(line.split()) == {
        **{"runs": ["a", "b"], "out": Path("c"), "speed": 2.0, "mode": "min", "names": ["x", "y"]},
        **{"tags": [1, 1000], "place": Place("h", loud=True), "ray": "local", "seed": 3},
    }


def test_the_help_has_sections_and_texts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        play(["--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: python -m marl_sb3.play RUN ... [options]\n\nPlay.\n")
    options, how = shown.split("\nhow:\n")
    assert "--speed X" in options
    assert "--mode M" in how
    assert "name of the server; default: none" in how
    assert "-v " in how
    assert "seed of the run; default: random" in " ".join(how.split())
    assert shown.endswith("the end\n")


def test_numbers_stay_within_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert play(["a", "--speed", "0"]) == 2
    assert capsys.readouterr().err == "error: --speed is 0.0; accepted: a number of at least 1\n"


@dataclass(frozen=True)
class Resuming:
    """A command that begins a run or resumes one."""

    seed: Annotated[int | None, SEED]
    every: Annotated[int | None, "--every K", "default: none", Setting("checkpoints.every")]
    place: Annotated[Place, {"what": "it"}]


def test_options_know_which_settings_they_give_and_which_a_resumed_run_takes() -> None:
    given: dict[str, Any] = {"every": 2, "place": Place("h", loud=False)}
    assert [(option.flag, value) for option, value in given_options(Resuming(1, **given))] == [
        ("--seed", 1), ("--every", 2), ("--host", "h"), ("--loud", False)
    ]  # fmt: skip
    assert settings_in(Resuming(1, **given)) == {"seed": 1, "every": 2}
    assert settings_in(Resuming(None, **given), of_resume=True) == {"every": 2}
    require_resumable(Resuming(None, **given), "a run")
    with pytest.raises(ConfigError, match=r"^--seed cannot change a run; accepted with --resume: --every, --host"):
        require_resumable(Resuming(0, **given), "a run")


class Explained(NamedTuple):
    """Fields with words.

    Example: this is no field.
    """

    beside: int  # what it is. None: nothing.
    # what a field is, in words that
    # do not fit beside it
    above: Mapping[str, int]
    bare: int = 0
    text: str = "a # b"  # one sentence


def test_the_words_beside_and_above_a_field_are_found_in_the_source() -> None:
    assert documented(Explained) == {
        "beside": "what it is. None: nothing.",
        "above": "what a field is, in words that do not fit beside it.",
        "text": "one sentence.",
    }
