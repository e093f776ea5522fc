"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .turns import NEVER as NEVER
from .turns import Experience as Experience
from .turns import ExperienceHook as ExperienceHook
from .turns import LearnedExperience as LearnedExperience
from .turns import Rewriter as Rewriter
