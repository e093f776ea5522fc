"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .builtin import ALGORITHMS as ALGORITHMS
from .joined_actions import JoinedActions as JoinedActions
from .joined_actions import joined_actions as joined_actions
