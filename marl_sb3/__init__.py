"""Multi-agent reinforcement learning with Stable-Baselines3.

Names are imported when they are first used: `import marl_sb3` alone does not import torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import marl_sb3.envs  # noqa: F401 - registers the built-in envs with PettingZoo

if TYPE_CHECKING:
    from marl_sb3.checkup.api import examine as examine
    from marl_sb3.config.ray import RaySettings as RaySettings
    from marl_sb3.envs.registry import register_env as register_env
    from marl_sb3.errors import CheckpointError as CheckpointError
    from marl_sb3.errors import ConfigError as ConfigError
    from marl_sb3.errors import EnvError as EnvError
    from marl_sb3.errors import EnvRaisedError as EnvRaisedError
    from marl_sb3.errors import MarlSb3Error as MarlSb3Error
    from marl_sb3.errors import NumericError as NumericError
    from marl_sb3.evaluation import evaluate_policies as evaluate_policies
    from marl_sb3.learners.a2c import A2C as A2C
    from marl_sb3.learners.bundle import PolicyBundle as PolicyBundle
    from marl_sb3.learners.combine import combine_policies as combine_policies
    from marl_sb3.learners.load import load_policies as load_policies
    from marl_sb3.learners.ppo.maskable import MaskablePPO as MaskablePPO
    from marl_sb3.learners.ppo.ppo import PPO as PPO
    from marl_sb3.learners.ppo.recurrent import RecurrentPPO as RecurrentPPO
    from marl_sb3.learners.replay.dqn import DQN as DQN
    from marl_sb3.learners.replay.qrdqn import QRDQN as QRDQN
    from marl_sb3.learners.replay.sac import SAC as SAC
    from marl_sb3.learners.replay.td3 import DDPG as DDPG
    from marl_sb3.learners.replay.td3 import TD3 as TD3
    from marl_sb3.learners.replay.tqc import TQC as TQC
    from marl_sb3.learners.spec import PolicySpec as PolicySpec
    from marl_sb3.learners.trpo import TRPO as TRPO
    from marl_sb3.metrics import Episode as Episode
    from marl_sb3.metrics import InfoMetric as InfoMetric
    from marl_sb3.policies.networks import register_network as register_network
    from marl_sb3.runs.restore import load_run as load_run
    from marl_sb3.runs.run import Run as Run
    from marl_sb3.runs.train import train as train
    from marl_sb3.training.algorithm import MultiAgentAlgorithm as MultiAgentAlgorithm
    from marl_sb3.training.callback import MultiAgentCallback as MultiAgentCallback
    from marl_sb3.tuning.api import tune as tune
    from marl_sb3.tuning.study import TuneStudy as TuneStudy
    from marl_sb3.vec_env import MultiAgentVecEnv as MultiAgentVecEnv
    from marl_sb3.vec_env import make_vec_env as make_vec_env
    from marl_sb3.vec_env.sharded_vec_env import make_sharded_vec_env as make_sharded_vec_env

__version__ = "0.1.0"

# Module -> the names that are imported from it.
_NAMES = {
    "checkup.api": "examine",
    "config.ray": "RaySettings",
    "envs.registry": "register_env",
    "errors": "CheckpointError ConfigError EnvError EnvRaisedError MarlSb3Error NumericError",
    "evaluation": "evaluate_policies",
    "learners.a2c": "A2C",
    "learners.bundle": "PolicyBundle",
    "learners.combine": "combine_policies",
    "learners.load": "load_policies",
    "learners.ppo.maskable": "MaskablePPO",
    "learners.ppo.ppo": "PPO",
    "learners.ppo.recurrent": "RecurrentPPO",
    "learners.replay.dqn": "DQN",
    "learners.replay.qrdqn": "QRDQN",
    "learners.replay.sac": "SAC",
    "learners.replay.td3": "DDPG TD3",
    "learners.replay.tqc": "TQC",
    "learners.spec": "PolicySpec",
    "learners.trpo": "TRPO",
    "metrics": "Episode InfoMetric",
    "policies.networks": "register_network",
    "runs.restore": "load_run",
    "runs.run": "Run",
    "runs.train": "train",
    "training.algorithm": "MultiAgentAlgorithm",
    "training.callback": "MultiAgentCallback",
    "tuning.api": "tune",
    "tuning.study": "TuneStudy",
    "vec_env": "MultiAgentVecEnv make_vec_env",
    "vec_env.sharded_vec_env": "make_sharded_vec_env",
}
_HOME = {name: f"marl_sb3.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__"]
__all__ += list(_HOME)


class _Package(ModuleType):
    """The module type of the package, which keeps `train` and `tune` bound to the functions of the library.

    Otherwise an import of `marl_sb3.train`, the module of the command, would bind the name to the module.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
