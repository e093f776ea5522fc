"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .names import HYPERPARAMETERS as HYPERPARAMETERS
from .names import OF_NETWORK as OF_NETWORK
from .names import as_integer as as_integer
from .names import canonical_hyperparameters as canonical_hyperparameters
from .names import canonical_name as canonical_name
from .names import canonical_settings as canonical_settings
from .names import canonical_value as canonical_value
from .names import put as put
from .rllib import LATER as LATER
from .rllib import OF_RUN as OF_RUN
from .rllib import network_settings as network_settings
from .rllib import number_of_envs as number_of_envs
from .rllib import translated as translated
from .rllib_names import NETWORK as NETWORK
from .rllib_names import Context as Context
from .zoo import ATARI as ATARI
from .zoo import DEFAULT as DEFAULT
from .zoo import KEYS as KEYS
from .zoo import TRANSLATED as TRANSLATED
from .zoo import refuse_unsupported as refuse_unsupported
from .zoo import section_for as section_for
from .zoo import translated_key as translated_key
