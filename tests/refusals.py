"""How a command refuses a wrong command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest


def refusal(main: Callable[[Sequence[str]], int], arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says of a wrong command line: exit code 2, one or two lines of an error, and nothing else."""
    try:
        exit_code = main(arguments)
    except SystemExit as left:  # argparse
        exit_code = int(str(left.code))
    captured = capsys.readouterr()
    assert exit_code == 2
    assert captured.err.startswith("error: ")
    assert len(captured.err.splitlines()) <= 2
    assert captured.out == ""
    return captured.err
