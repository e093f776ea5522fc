"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .api import prepared as prepared
from .finals import cost_words as cost_words
from .options import SamplingOptions as SamplingOptions
from .options import SearchOptions as SearchOptions
from .options import SteppingOptions as SteppingOptions
from .options import StudyOptions as StudyOptions
from .options import TrialOptions as TrialOptions
from .report import write_files as write_files
from .search import Search as Search
from .study import TuneStudy as TuneStudy
from .trials import require_any_complete as require_any_complete
from .view import print_outcome as print_outcome
