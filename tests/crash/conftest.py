"""What the tests that kill share: trainings that nobody disturbed, and those that are disturbed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from attempts import Attempt
from forked import ForkServer
from kills import train_reference
from kinds import KINDS


@pytest.fixture(scope="session")
def reference_of(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The runs of a kind, trained when they are first asked for; nobody may write to them."""
    found: dict[str, Path] = {}

    def reference(kind: str) -> Path:
        if kind not in found:
            found[kind] = train_reference(KINDS[kind], tmp_path_factory.mktemp(kind), server)
        return found[kind]

    return reference


@pytest.fixture
def attempt(server: ForkServer, reference_of: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Attempt]:
    """The training of a kind, which is compared with the one that nobody disturbed."""

    def attempt_of(kind: str) -> Attempt:
        command, *arguments = KINDS[kind].command(tmp_path)
        return Attempt(server, tmp_path, arguments, lambda: reference_of(kind), command)

    return attempt_of
