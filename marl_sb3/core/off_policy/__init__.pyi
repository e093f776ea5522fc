"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .off_policy import replay_buffer as replay_buffer
from .off_policy import require_memory as require_memory
from .replay import HeldTransitions as HeldTransitions
from .replay import ReplayExperience as ReplayExperience
from .replay import Transitions as Transitions
from .replay import joined_transitions as joined_transitions
