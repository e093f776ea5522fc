"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .names import HYPERPARAMETERS as HYPERPARAMETERS
from .names import Meanings as Meanings
from .names import as_integer as as_integer
from .names import canonical_hyperparameters as canonical_hyperparameters
from .names import canonical_name as canonical_name
from .names import canonical_settings as canonical_settings
from .names import canonical_value as canonical_value
from .names import meanings as meanings
from .names import metric_here as metric_here
from .names import no_policy as no_policy
from .names import path_of as path_of
from .names import put as put
from .names import require_logged as require_logged
from .names import run_meanings as run_meanings
from .table import COUNTERPARTS as COUNTERPARTS
from .table import LATER as LATER
from .table import NAMES as NAMES
from .zoo import ATARI as ATARI
from .zoo import DEFAULT as DEFAULT
from .zoo import KEYS as KEYS
from .zoo import refuse_unsupported as refuse_unsupported
from .zoo import section_for as section_for
from .zoo import translated_key as translated_key
