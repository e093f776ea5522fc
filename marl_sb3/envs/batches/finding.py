"""Find envs that come as batches by their ids: the library, a slash, and its own id, as in `envpool/Pong-v5`."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from typing_extensions import override

from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.doors import EnvFinder, imported
from marl_sb3.errors import ConfigError, install_words


class _Library(NamedTuple):
    package: str  # that it is
    extra: str  # that installs it
    make: str  # the place of what makes a batch: (its own id, num_envs, **env_kwargs)


_LIBRARIES: Mapping[str, _Library] = {
    "vector": _Library("gymnasium", "", "marl_sb3.envs.batches.vector_envs:made_by_gymnasium"),
    "envpool": _Library("envpool", "envpool", "marl_sb3.envs.batches.vector_envs:EnvPoolBatch"),
    "vmas": _Library("vmas", "vmas", "marl_sb3.envs.batches.vmas:VmasBatch"),
    "gymnax": _Library("gymnax", "jax", "marl_sb3.envs.batches.jax_envs:made_by_gymnax"),
    "jaxmarl": _Library("jaxmarl", "jax", "marl_sb3.envs.batches.jax_envs:made_by_jaxmarl"),
    "jumanji": _Library("jumanji", "jax", "marl_sb3.envs.batches.jax_envs:made_by_jumanji"),
}


class BatchFinder(EnvFinder):
    """Envs of libraries whose envs come as batches, by the name of the library and a slash."""

    @override
    def find(self, env_id: str) -> EnvFactory | None:
        name, _, own = env_id.partition("/")
        if not own or (library := _LIBRARIES.get(name)) is None:
            return None
        if importlib.util.find_spec(library.package) is None:
            words = f"the package {library.package} is not installed; {install_words(library.extra)}"
            raise ConfigError(f"env {env_id!r}: {words}", key="env")
        from marl_sb3.envs.batches.base import batch_factory

        make: Any = imported(library.make)
        return batch_factory(partial(make, own), env_id)


FINDER = BatchFinder()
