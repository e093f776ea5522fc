"""Open the logs of a run while it trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from marl_sb3.runs.logs.rows import PROGRESS_FILE, CsvFormat, JsonLinesFormat, KeptResult
from marl_sb3.runs.logs.tensorboard import EventsFormat, quiet_writers, write_settings
from marl_sb3.runs.reader import RESULT_FILE
from marl_sb3.runs.run import Run
from marl_sb3.training.result_logger import ResultLogger, ResultWriter


@contextmanager
def logs_of(run: Run) -> Iterator[None]:
    """Log the metrics of the training to the run folder: as JSON lines, as CSV, and for TensorBoard.

    The run keeps the latest result, too.
    """
    folder, config = run.folder, run.config
    logs = (
        lambda: JsonLinesFormat(folder / RESULT_FILE),
        lambda: CsvFormat(folder / PROGRESS_FILE),
        lambda: EventsFormat(folder, config.tensorboard_agents, [config.checkpoints.metric, *config.stop]),
    )
    write_settings(folder, config, list(run.algorithm.policies))
    with ExitStack() as cleanup:
        cleanup.enter_context(quiet_writers())
        writers: list[ResultWriter] = [KeptResult(run.keep_result)]
        for make in logs:
            writers.append(make())
            cleanup.callback(writers[-1].close)
        run.algorithm.set_logger(ResultLogger(str(folder), writers))
        yield
