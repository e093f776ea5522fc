"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .mapping import Deterministic as Deterministic
from .mapping import PolicyMapping as PolicyMapping
from .mapping import PolicyRows as PolicyRows
from .mapping import by_policy as by_policy
from .mapping import policies_that_train as policies_that_train
from .mapping import policy_mapping as policy_mapping
from .mapping import policy_of_agents as policy_of_agents
from .mapping import read_deterministic as read_deterministic
from .mapping import read_mapping as read_mapping
from .mapping import resolve_policies as resolve_policies
from .mapping import rows_of_policy as rows_of_policy
from .mapping import zero_actions as zero_actions
