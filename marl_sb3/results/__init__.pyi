"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .rating import Rating as Rating
from .rating import ratings as ratings
