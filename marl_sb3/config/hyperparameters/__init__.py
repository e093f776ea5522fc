"""The hyperparameters of each algorithm: SB3's argument names and what is accepted for them, one table per file.

To add an algorithm, write its table and name it here by the class's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_sb3.config.hyperparameters.a2c import A2C
from marl_sb3.config.hyperparameters.ppo import PPO
from marl_sb3.config.values import takes_integers_only

TABLES: Mapping[str, Mapping[str, Any]] = {"PPO": PPO, "A2C": A2C}

# The names that a file may give as 1e5 for 100000.
INTEGERS = frozenset(name for table in TABLES.values() for name, kind in table.items() if takes_integers_only(kind))


def kinds_of(algorithm: type) -> Mapping[str, Any]:
    """Return the table of an algorithm's class, or of its first base class with a table, or an empty one."""
    return next((TABLES[cls.__name__] for cls in algorithm.__mro__ if cls.__name__ in TABLES), {})
