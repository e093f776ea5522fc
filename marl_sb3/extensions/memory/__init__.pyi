"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .algorithms import RecurrentDQN as RecurrentDQN
from .networks import MemoryNetwork as MemoryNetwork
from .networks import PolicyWithMemory as PolicyWithMemory
from .sac import RecurrentSAC as RecurrentSAC
from .sequences import SequenceBatch as SequenceBatch
from .sequences import SequenceBuffer as SequenceBuffer
from .sequences import SequenceDictBuffer as SequenceDictBuffer
from .sequences import Sequences as Sequences
