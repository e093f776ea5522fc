"""The extensions that come with the package, at the doors of the core: each is imported when it is first used."""

from __future__ import annotations

from marl_sb3.doors import STORES

STORES.add("folder", "marl_sb3.storage.checkpoint_folder:STORE")
