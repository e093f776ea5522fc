"""Show a training while it runs."""

from __future__ import annotations

from marl_sb3.display.screen import Guard, standard_console
from marl_sb3.display.training_view import Goals, TrainingView, training_view
from marl_sb3.metrics import Result
from marl_sb3.training.callback import MultiAgentCallback


class ShowProgress(MultiAgentCallback):
    """Passes the progress of the training to a view. An error of the view ends the view, but not the training.

    Args:
        view: from `marl_sb3.display.training_view.training_view`.
    """

    def __init__(self, view: TrainingView) -> None:
        super().__init__()
        self._view = view
        self._show: Guard[None] = Guard(view.close)

    def _on_training_start(self) -> None:
        self._show(self._view.begin, self.num_timesteps, self.locals["total_timesteps"])

    def _on_step(self) -> bool:
        self._show(self._view.advance, self.num_timesteps)
        return True

    def on_iteration_end(self, result: Result) -> bool:
        """Show the new numbers."""
        self._show(self._view.add, result)
        return True

    def _on_training_end(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the view and release the terminal."""
        self._show(self._view.close)


def progress_bar_callback() -> ShowProgress:
    """Make the callback of `learn(progress_bar=True)`: a view on standard output that keeps its last picture."""
    return ShowProgress(training_view(standard_console(), "training", Goals(), keep=True))
