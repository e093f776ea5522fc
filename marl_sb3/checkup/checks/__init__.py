"""All checks; a new check is a function and an entry in one of these tables."""

from __future__ import annotations

from collections.abc import Sequence

from marl_sb3.checkup.checks.advice import ADVICE
from marl_sb3.checkup.checks.agents import AGENTS
from marl_sb3.checkup.checks.dependence import DEPENDENCE
from marl_sb3.checkup.checks.reported import INTERFACE, MORE, PROCESSES, SEEDS
from marl_sb3.checkup.checks.values import VALUES
from marl_sb3.checkup.finding import Check

CHECKS: Sequence[Check] = (*INTERFACE, *VALUES, *AGENTS, *SEEDS, *DEPENDENCE, *MORE, *ADVICE, *PROCESSES)
