"""Modules that the documentation named in earlier versions, under their earlier names.

An import by such a name gives the module that is elsewhere now, the same object, and a `DeprecationWarning`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# The earlier name of a module, or of a folder with all of its modules -> its name.
_MOVED: Mapping[str, str] = {
    f"marl_sb3.{old}": f"marl_sb3.{new}"
    for old, new in {
        "acting": "core.acting",
        "analysis.comparison": "tools.looking.comparison",
        "analysis.health": "results.health",
        "tools.looking.health": "results.health",
        "analysis": "results",
        "checkup": "tools.checkup",
        "data": "extensions.data",
        "envs.batched": "core.envs.batched",
        "envs.gymnasium_envs": "core.envs.converted",
        "envs.registry": "core.envs.registry",
        "envs.turn_based": "core.envs.converted",
        "metrics": "core.metrics",
        "policies.mapping": "core.mapping",
        "policies": "core.policies",
        "processing": "core.processing",
        "serving": "tools.serving",
        "training": "core.training",
        "tuning": "tools.tuning",
        "vec_env": "core.vec_env",
    }.items()
}


def present_name(name: str) -> str | None:
    """Return the name that a module has now; None if it has not moved."""
    head, rest = name, ""
    while head.count("."):
        if head in _MOVED:
            return _MOVED[head] + rest
        head, _, last = head.rpartition(".")
        rest = f".{last}{rest}"
    return None


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Asked for every module that any package imports.
        is_ours = fullname.startswith("marl_sb3.")
        return ModuleSpec(fullname, self) if is_ours and present_name(fullname) is not None else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = present_name(spec.name)
        assert name is not None, "find_spec has found one"
        module = import_module(name)
        spec.loader_state = module.__spec__  # the import system is about to replace it
        warnings.warn(f"{spec.name} is {name} now", DeprecationWarning, stacklevel=2)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _Finder())  # in front: the folders are there, and would be imported twice
