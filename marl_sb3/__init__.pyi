"""The public names, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .acting.bundle import PolicyBundle as PolicyBundle
from .acting.bundle import combine_policies as combine_policies
from .checkup.api import examine as examine
from .config.algorithms import AlgorithmInfo as AlgorithmInfo
from .config.ray import RaySettings as RaySettings
from .envs.registry import register_env as register_env
from .errors import CheckpointError as CheckpointError
from .errors import ConfigError as ConfigError
from .errors import EnvError as EnvError
from .errors import EnvRaisedError as EnvRaisedError
from .errors import HookError as HookError
from .errors import MarlSb3Error as MarlSb3Error
from .errors import NumericError as NumericError
from .evaluation import evaluate_against_random as evaluate_against_random
from .evaluation import evaluate_policies as evaluate_policies
from .experience.trajectories import Trajectory as Trajectory
from .learners.algorithms.contrib import QRDQN as QRDQN
from .learners.algorithms.contrib import TQC as TQC
from .learners.algorithms.contrib import TRPO as TRPO
from .learners.algorithms.contrib import MaskablePPO as MaskablePPO
from .learners.algorithms.contrib import RecurrentPPO as RecurrentPPO
from .learners.algorithms.ppo import A2C as A2C
from .learners.algorithms.ppo import PPO as PPO
from .learners.algorithms.replay import DDPG as DDPG
from .learners.algorithms.replay import DQN as DQN
from .learners.algorithms.replay import SAC as SAC
from .learners.algorithms.replay import TD3 as TD3
from .learners.load import load_policies as load_policies
from .learners.registry import register_algorithm as register_algorithm
from .learners.spec import PolicySpec as PolicySpec
from .metrics import Episode as Episode
from .metrics import InfoMetric as InfoMetric
from .metrics import RunningEpisode as RunningEpisode
from .policies.networks import register_network as register_network
from .runs.run import Run as Run
from .runs.run import load_run as load_run
from .runs.train import train as train
from .training.algorithm import MultiAgentAlgorithm as MultiAgentAlgorithm
from .training.algorithm import MultiAgentCallback as MultiAgentCallback
from .tuning.api import tune as tune
from .tuning.study import TuneStudy as TuneStudy
from .vec_env import MultiAgentVecEnv as MultiAgentVecEnv
from .vec_env import make_vec_env as make_vec_env
from .vec_env.sharded_vec_env import make_sharded_vec_env as make_sharded_vec_env

__version__: str
