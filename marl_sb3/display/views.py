"""Which view of a training suits a console."""

from __future__ import annotations

from rich.console import Console

from marl_sb3.display.live_view import LiveView
from marl_sb3.display.plain_lines import PlainLines
from marl_sb3.display.training import Goals, TrainingView


def training_view(console: Console, title: str, goals: Goals, *, keep: bool = False) -> TrainingView:
    """A picture where the console can show one, lines of text elsewhere.

    Args:
        console: where it is shown.
        title: what is trained.
        goals: see there.
        keep: leave the last picture where it is when the training ends.
    """
    live = LiveView(console, title, goals, keep=keep)
    return live if live.is_possible else PlainLines(console, goals)
