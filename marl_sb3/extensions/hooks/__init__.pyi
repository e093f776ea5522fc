"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .episodes import RunningEpisode as RunningEpisode
from .trajectories import Trajectory as Trajectory
