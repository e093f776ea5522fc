"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .processing import ORDER as ORDER
from .processing import Processing as Processing
from .processors import Memory as Memory
from .processors import Policy as Policy
from .rows import RowProcessing as RowProcessing
from .rows import process_rows as process_rows
