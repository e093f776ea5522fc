"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .off_policy import OffPolicyLearner as OffPolicyLearner
from .off_policy import replay_buffer as replay_buffer
from .off_policy import require_memory as require_memory
from .per_row_replay import CompactBuffer as CompactBuffer
from .per_row_replay import HindsightBuffer as HindsightBuffer
from .per_row_replay import NStepBuffer as NStepBuffer
from .per_row_replay import NStepDictBuffer as NStepDictBuffer
from .per_row_replay import PerRowReplay as PerRowReplay
from .replay import ReplayExperience as ReplayExperience
from .replay import TransitionBuffer as TransitionBuffer
from .replay import TransitionDictReplayBuffer as TransitionDictReplayBuffer
from .replay import TransitionReplayBuffer as TransitionReplayBuffer
from .replay import Transitions as Transitions
from .replay import joined_transitions as joined_transitions
