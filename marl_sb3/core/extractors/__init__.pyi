"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .attention import AttentionFeatures as AttentionFeatures
from .sets import DeepSetsFeatures as DeepSetsFeatures
from .sets import SetAttentionFeatures as SetAttentionFeatures
