"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .on_policy import OnPolicyLearner as OnPolicyLearner
from .rollout import MaskedDictRolloutBuffer as MaskedDictRolloutBuffer
from .rollout import MaskedRolloutBuffer as MaskedRolloutBuffer
from .rollout import RolloutExperience as RolloutExperience
from .rollout import flat_samples as flat_samples
from .rollout import minibatch_starts as minibatch_starts
from .sequences import ActionMaskDictRolloutBuffer as ActionMaskDictRolloutBuffer
from .sequences import ActionMaskRolloutBuffer as ActionMaskRolloutBuffer
from .sequences import MemoryDictRolloutBuffer as MemoryDictRolloutBuffer
from .sequences import MemoryRolloutBuffer as MemoryRolloutBuffer
from .sequences import SequenceDictRolloutBuffer as SequenceDictRolloutBuffer
from .sequences import SequenceRolloutBuffer as SequenceRolloutBuffer
from .sequences import WholeSequences as WholeSequences
