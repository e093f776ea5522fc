"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .off_policy import OffPolicyLearner as OffPolicyLearner
from .off_policy import replay_buffer as replay_buffer
from .off_policy import require_memory as require_memory
from .replay import HeldTransitions as HeldTransitions
from .replay import Lines as Lines
from .replay import ReplayExperience as ReplayExperience
from .replay import TransitionDictReplayBuffer as TransitionDictReplayBuffer
from .replay import TransitionReplayBuffer as TransitionReplayBuffer
from .replay import Transitions as Transitions
from .replay import joined_transitions as joined_transitions
from .row_rings import CompactBuffer as CompactBuffer
from .row_rings import HindsightBuffer as HindsightBuffer
from .row_rings import NStepBuffer as NStepBuffer
from .row_rings import NStepDictBuffer as NStepDictBuffer
from .row_rings import RowRings as RowRings
