"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .networks import OF_THE_USER as OF_THE_USER
from .networks import AttentionFeatures as AttentionFeatures
from .networks import MlpFeatures as MlpFeatures
from .networks import activation_name as activation_name
from .networks import registered_class as registered_class
from .networks import resolve_policy_kwargs as resolve_policy_kwargs
