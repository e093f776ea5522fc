"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .trajectories import NEVER as NEVER
from .trajectories import Trajectory as Trajectory
from .trajectories import TrajectoryHook as TrajectoryHook
from .trajectories import TrajectoryRewriter as TrajectoryRewriter
from .trajectories import TransitionNotes as TransitionNotes
from .trajectories import rewrite_rollout as rewrite_rollout
from .turns import Experience as Experience
from .turns import LearnedExperience as LearnedExperience
