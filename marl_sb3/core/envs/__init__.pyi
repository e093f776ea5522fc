"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .batched import BatchedEnv as BatchedEnv
from .batched import BatchedStep as BatchedStep
from .converted import AGENT as AGENT
from .converted import BENEATH as BENEATH
from .converted import MASK as MASK
from .converted import SingleAgentEnv as SingleAgentEnv
from .converted import resize as resize
from .faults import RAISED as RAISED
from .faults import ask_for_state as ask_for_state
from .faults import close_in_words as close_in_words
from .faults import in_words as in_words
from .faults import raise_in_words as raise_in_words
from .registry import REGISTERED as REGISTERED
from .registry import EnvFactory as EnvFactory
from .registry import env_factory as env_factory
from .registry import import_from_here as import_from_here
from .registry import import_modules as import_modules
from .registry import imported_modules as imported_modules
from .registry import make_env as make_env
from .registry import module_id as module_id
from .registry import register_env as register_env
from .registry import takes_argument as takes_argument
from .registry import why_not_batched as why_not_batched
