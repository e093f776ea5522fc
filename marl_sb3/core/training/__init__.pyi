"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .accepted import accepted_callbacks as accepted_callbacks
from .algorithm import MultiAgentAlgorithm as MultiAgentAlgorithm
from .algorithm import MultiAgentCallback as MultiAgentCallback
from .callback import TrainingCallback as TrainingCallback
from .callback import TrainingWatcher as TrainingWatcher
from .callback import has_hook as has_hook
from .callback import named_errors as named_errors
from .callback import with_hook as with_hook
from .loop import IterationReport as IterationReport
from .loop import TrainingLoop as TrainingLoop
from .results import ResultLogger as ResultLogger
from .results import ResultWriter as ResultWriter
from .results import ShowProgress as ShowProgress
from .results import iteration_result as iteration_result
from .runner import LocalRunner as LocalRunner
from .runner import Runner as Runner
from .runner import StepListener as StepListener
from .setup import Setup as Setup
from .setup import local_runner as local_runner
