"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .opponents import Opponent as Opponent
from .opponents import RandomOpponent as RandomOpponent
from .opponents import Source as Source
from .opponents import combine_policies as combine_policies
from .playing import Evaluation as Evaluation
from .playing import EvaluationPlan as EvaluationPlan
from .playing import SeatEvaluations as SeatEvaluations
from .playing import episodes_of_env as episodes_of_env
from .playing import evaluate_against_random as evaluate_against_random
from .playing import evaluate_policies as evaluate_policies
from .playing import evaluation_seed as evaluation_seed
from .playing import metric_names as metric_names
from .playing import play_episodes as play_episodes
from .playing import play_seats as play_seats
from .playing import preserve_training_state as preserve_training_state
from .playing import random_returns as random_returns
from .playing import require_same_agents as require_same_agents
from .playing import seat_name as seat_name
from .playing import seats_of as seats_of
from .playing import seed_generators as seed_generators
