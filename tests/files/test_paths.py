"""Names of files that come from data: none leads out of its folder, on any system."""

from __future__ import annotations

from pathlib import PurePath, PureWindowsPath

import pytest

from marl_sb3.errors import ConfigError
from marl_sb3.files.paths import file_names, folder_name, require_file_name

ODD = (
    "..",
    ".",
    "",
    "a/b",
    "a\\b",
    "/etc",
    "C:x",
    "nul",
    "Com1.txt",
    "x.",
    "x ",
    ".unfinished-x",
    "a\0b",
    "a\nb",
    "\x1b[31m",
)


@pytest.mark.parametrize("name", [*ODD, "x" * 221, "\udc80", 5, None])
def test_what_cannot_be_a_name_everywhere_is_refused_with_its_place(name: object) -> None:
    with pytest.raises(ConfigError, match=r"some\.yml: algos is .*; accepted: a printable name of at most 220 bytes"):
        require_file_name("some.yml: algos", name, "algos")


def test_names_of_any_language_are_taken_as_they_are() -> None:
    for name in ("ppo", "PPO, lr 1e-3 (β=0.9)", "名前", "a..b", "console", "x" * 220):
        assert require_file_name("--study", name, "study") == name


def test_names_that_are_made_of_others_stay_in_their_folder() -> None:
    made = [*map(folder_name, ODD[:2] + ODD[3:]), *file_names(ODD[:2] + ODD[3:], "").values()]
    for name in made:
        assert PurePath(name).name == PureWindowsPath(name).name == name
        assert not name.startswith(".")
    assert folder_name("sisl/pursuit-v5") == "sisl_pursuit-v5"
    assert folder_name("my.games:make env") == "my.games_make_env"


def test_file_names_differ_on_every_file_system() -> None:
    assert file_names(["a/b", "c"], ".zip") == {"a/b": "a_b.zip", "c": "c.zip"}
    names = file_names(["a/b", "a_b", "A_B", "a:b", "c"], ".zip")
    assert names["c"] == "c.zip"
    assert names["a/b"] == "a_b-c14cddc0.zip"
    assert len({name.casefold() for name in names.values()}) == 5
    assert not any(set(name) & set('/\\:*?"<>|') for name in names.values())


def test_names_that_windows_keeps_for_devices_are_no_file_names() -> None:
    names = [*file_names(["con", "NUL", "com1", "lpt9.x", "console", "icon"], ".zip").values()]
    assert names == ["_con.zip", "_NUL.zip", "_com1.zip", "_lpt9.x.zip", "console.zip", "icon.zip"]
    assert len({*file_names(["con", "_con"], ".zip").values()}) == 2
