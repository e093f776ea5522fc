"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .actor import Acted as Acted
from .actor import ActingWatcher as ActingWatcher
from .actor import Actor as Actor
from .actor import Observed as Observed
from .actor import not_finite_refused as not_finite_refused
from .asked_agent import AgentInputs as AgentInputs
from .asked_agent import PolicyAnswer as PolicyAnswer
from .asked_agent import RequestedOutputs as RequestedOutputs
from .by_agent import PolicyBundle as PolicyBundle
from .by_agent import PolicyByAgent as PolicyByAgent
from .by_agent import PolicySpaces as PolicySpaces
from .policy import Decision as Decision
from .policy import ExploringPolicy as ExploringPolicy
from .policy import Policy as Policy
from .policy import PolicyInputs as PolicyInputs
from .policy import PredictingPolicy as PredictingPolicy
from .policy import RolloutPolicy as RolloutPolicy
from .policy import RowNoise as RowNoise
from .policy import make_action_noise as make_action_noise
from .recurrent import RecurrentRolloutPolicy as RecurrentRolloutPolicy
