"""What the tests that kill share: trainings that nobody disturbed, and those that are disturbed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from attempts import Attempt
from forked import ForkServer
from kill_harness import Case, train_reference


@pytest.fixture(scope="session")
def reference_of(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Path]:
    """The run folder of a case, trained when it is first asked for; nobody may write to it."""
    found: dict[Case, Path] = {}

    def reference(case: Case) -> Path:
        if case not in found:
            found[case] = train_reference(case, tmp_path_factory.mktemp(f"{case}"), server)
        return found[case]

    return reference


@pytest.fixture
def attempt(server: ForkServer, reference_of: Callable[[Case], Path], tmp_path: Path) -> Callable[[Case], Attempt]:
    """The training of a case, which is compared with the one that nobody disturbed."""
    return lambda case: Attempt(server, tmp_path, case.command(tmp_path), lambda: reference_of(case))
