"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .league import Exploiter as Exploiter
from .league import League as League
from .pool import Member as Member
from .runner import LeagueRunner as LeagueRunner
from .settings import LeagueSettings as LeagueSettings
from .watcher import league_watcher as league_watcher
