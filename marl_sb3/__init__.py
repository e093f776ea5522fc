"""Multi-agent reinforcement learning with Stable-Baselines3.

Names are imported when they are first used: `import marl_sb3` alone does not import torch.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import lazy_loader

from marl_sb3.startup import end_while_it_starts

try:
    end_while_it_starts()
    os.getcwd()
except FileNotFoundError as error:
    if not {os.path.basename(name) for name in sys.argv[:1]} & {"-m", "marl-sb3"}:  # no command begins
        raise
    print(f"error: the working directory is not there any more: {error.strerror}; accepted: another", file=sys.stderr)
    sys.exit(2)

import marl_sb3.envs
import marl_sb3.extensions
import marl_sb3.runs  # noqa: F401 - as the others, imported for what it does

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class _Package(ModuleType):
    """The module type of the package, which keeps `train` and `tune` bound to the functions of the library.

    Otherwise an import of `marl_sb3.train`, the module of the command, would bind the name to the module.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
