"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .critic import CentralCritic as CentralCritic
from .settings import CentralSettings as CentralSettings
from .twin import TwinCritics as TwinCritics
