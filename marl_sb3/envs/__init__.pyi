"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .finding import TWINS as TWINS
from .turn_based import TurnBasedEnv as TurnBasedEnv
