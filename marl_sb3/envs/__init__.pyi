"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .drawn import DrawnEnv as DrawnEnv
from .drawn import EnvWindow as EnvWindow
from .drawn import import_pygame as import_pygame
from .external import StepReport as StepReport
from .external import read_external as read_external
from .external_vec_env import Answered as Answered
from .external_vec_env import EpisodeRefusedError as EpisodeRefusedError
from .external_vec_env import ExternalVecEnv as ExternalVecEnv
from .finding import TWINS as TWINS
from .finding import attribute_from_here as attribute_from_here
from .finding import factory_id as factory_id
from .finding import importable_id as importable_id
from .finding import named_factory as named_factory
from .gymnasium_wrappers import named_wrappers as named_wrappers
from .gymnasium_wrappers import wrapping_factory as wrapping_factory
from .open_spiel import OPEN_SPIEL as OPEN_SPIEL
from .open_spiel import OpenSpielEnv as OpenSpielEnv
from .tuples import AsAgents as AsAgents
from .turn_based import TurnBasedEnv as TurnBasedEnv
