"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .opponents import OPPONENTS as OPPONENTS
from .played import Played as Played
from .playing import play as play
from .search import searching as searching
