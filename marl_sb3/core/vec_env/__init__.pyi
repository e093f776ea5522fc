"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .batched_vec_env import BatchedVecEnv as BatchedVecEnv
from .interface import MultiAgentVecEnv as MultiAgentVecEnv
from .make import as_vec_env as as_vec_env
from .make import make_vec_env as make_vec_env
from .observations import AgentGroup as AgentGroup
from .sb3_vec_env import FlatVecEnv as FlatVecEnv
from .separate_envs import SyncVecEnv as SyncVecEnv
from .step import VecStep as VecStep
from .supersuit_vec_env import SuperSuitVecEnv as SuperSuitVecEnv
