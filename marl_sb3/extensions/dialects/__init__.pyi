"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .names import HYPERPARAMETERS as HYPERPARAMETERS
from .names import as_integer as as_integer
from .names import canonical_hyperparameters as canonical_hyperparameters
from .names import canonical_name as canonical_name
from .names import canonical_settings as canonical_settings
from .names import canonical_value as canonical_value
from .names import path_of as path_of
from .names import put as put
from .rllib import LATER as LATER
from .rllib import Meanings as Meanings
from .rllib import meanings as meanings
from .rllib import metric_here as metric_here
from .rllib import no_policy as no_policy
from .rllib import require_logged as require_logged
from .rllib import run_meanings as run_meanings
from .rllib_names import METHODS as METHODS
from .rllib_names import NETWORK as NETWORK
from .zoo import ATARI as ATARI
from .zoo import DEFAULT as DEFAULT
from .zoo import KEYS as KEYS
from .zoo import refuse_unsupported as refuse_unsupported
from .zoo import section_for as section_for
from .zoo import translated_key as translated_key
