"""The names of the room, listed once: type checkers read them, and lazy_loader imports each when it is first used."""

from .base import AdaptedBatch as AdaptedBatch
from .base import batch_factory as batch_factory
from .jax_envs import JaxEnv as JaxEnv
from .jax_envs import jax_envs as jax_envs
from .vector_envs import vector_envs as vector_envs
