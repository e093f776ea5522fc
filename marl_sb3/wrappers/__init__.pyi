"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .checks import LARGEST_FLOAT32 as LARGEST_FLOAT32
from .checks import innermost_env as innermost_env
from .checks import observation_fault as observation_fault
from .checks import require_agents as require_agents
from .checks import require_interface as require_interface
from .checks import reward_fault as reward_fault
from .checks import unfit_numbers as unfit_numbers
from .checks import unfit_words as unfit_words
from .observations import OBSERVATION as OBSERVATION
from .observations import EnvView as EnvView
from .observations import choices_of as choices_of
from .observations import env_action as env_action
from .observations import env_space as env_space
from .observations import flat_space as flat_space
from .observations import is_nested as is_nested
from .observations import named_parts as named_parts
from .observations import policy_actions as policy_actions
