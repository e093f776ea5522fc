"""Files and folders that are replaced whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from marl_sb3.files.atomic import remove_folder, replaced_file, replaced_folder, unfinished_path, write_whole


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "file.txt", "first")
    write_whole(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_stays_as_it_is_where_the_new_one_fails(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "file.txt", b"first")
    with pytest.raises(KeyboardInterrupt), replaced_file(path) as fresh:  # noqa: PT012
        fresh.write_text("half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_an_open_file_gets_its_name(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"unfinished-file\.txt"), replaced_file(tmp_path / "file.txt"):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("sync", [False, True])
def test_a_folder_is_replaced_with_what_was_in_it(sync: bool, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "folder"
    for name in ("first", "second"):
        with replaced_folder(folder, sync=sync) as fresh:
            (fresh / name).write_text(name)
    assert [path.name for path in folder.iterdir()] == ["second"]
    assert list(folder.parent.iterdir()) == [folder]


def test_a_file_is_not_replaced_by_a_folder(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "name", "mine")
    with pytest.raises(NotADirectoryError, match="name"), replaced_folder(path):
        pass
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_stays_as_it_is_where_the_new_one_fails(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    with replaced_folder(folder) as fresh:
        (fresh / "first").touch()
    with pytest.raises(ZeroDivisionError), replaced_folder(folder) as fresh:  # noqa: PT012
        (fresh / "second").touch()
        raise ZeroDivisionError
    assert [path.name for path in folder.iterdir()] == ["first"]
    assert list(tmp_path.iterdir()) == [folder]


def test_what_a_killed_process_left_is_overwritten(tmp_path: Path) -> None:
    unfinished_path(tmp_path / "file").write_text("half")
    unfinished_path(tmp_path / "folder").mkdir()
    (unfinished_path(tmp_path / "folder") / "half").touch()
    write_whole(tmp_path / "file", "whole")
    with replaced_folder(tmp_path / "folder"):
        pass
    assert list((tmp_path / "folder").iterdir()) == []
    remove_folder(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_tensorboard_does_not_read_what_is_unfinished() -> None:
    assert "tfevents" not in unfinished_path(Path("events.out.tfevents.1.settings")).name
