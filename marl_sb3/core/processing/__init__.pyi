"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .processing import ORDER as ORDER
from .processing import NormalizeObservations as NormalizeObservations
from .processing import Processing as Processing
from .processing import RescaleActions as RescaleActions
from .processing import recent_state as recent_state
from .processors import LEAST_PIXELS as LEAST_PIXELS
from .processors import REWARD as REWARD
from .processors import WHOLE as WHOLE
from .processors import FrameStack as FrameStack
from .processors import ProcessedPolicy as ProcessedPolicy
from .processors import RowMemory as RowMemory
from .processors import parts_of as parts_of
from .processors import require_choices as require_choices
from .rows import ProcessedRows as ProcessedRows
from .rows import RowProcessing as RowProcessing
from .rows import process_rows as process_rows
