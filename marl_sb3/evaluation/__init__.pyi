"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .opponents import OPPONENTS as OPPONENTS
from .playing import Evaluation as Evaluation
from .playing import play_episodes as play_episodes
from .search import searching as searching
