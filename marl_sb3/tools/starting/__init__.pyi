"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .project import KINDS as KINDS
from .project import write_project as write_project
