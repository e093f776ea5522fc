"""A disk without space, for one file or folder, in this process."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from marl_sb3.files import append_text
from marl_sb3.runs import logs


class FullDisk(io.FileIO):
    """A file that cannot get larger than it may: what fits is written, the rest is refused, as by the system."""

    def __init__(self, path: Path, mode: str, capacity: int) -> None:
        super().__init__(path, mode.replace("t", ""))
        self._capacity = capacity

    def write(self, data: Any) -> int:
        space = self._capacity - self.seek(0, os.SEEK_END)
        if space <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(bytes(data)[:space])


def no_space_in(monkeypatch: pytest.MonkeyPatch, name: str, capacity: int) -> None:
    """Let files of this name hold so many bytes."""
    original = Path.open

    def opened(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if self.name != name or "r" in mode:
            return original(self, mode, *args, **kwargs)
        file = io.BufferedWriter(FullDisk(self, mode.replace("b", ""), capacity))
        return file if "b" in mode else io.TextIOWrapper(file, encoding="utf-8", newline="")

    def appended(path: Path) -> Any:
        return opened(path, "a") if path.name == name else append_text(path)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(logs, "append_text", appended)


def no_space_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let folders and locks of this name not be made."""

    def refused(path: Any) -> None:
        if Path(path).name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    for owner, call in ((Path, "mkdir"), (os, "open")):
        original = getattr(owner, call)

        def checked(path: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            refused(path)
            return original(path, *args, **kwargs)

        monkeypatch.setattr(owner, call, checked)
