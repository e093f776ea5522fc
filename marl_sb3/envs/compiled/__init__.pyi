"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .batch import CompiledBatch as CompiledBatch
from .rules import CompiledRules as CompiledRules
from .rules import Outcome as Outcome
from .twins import require_same as require_same
