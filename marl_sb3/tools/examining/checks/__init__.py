"""All checks. Each is declared in one of these modules, with the function that finds it or for a probe to report."""

from marl_sb3.tools.examining.checks import agents, dependence, reported, values  # noqa: F401 - they fill CHECKS
from marl_sb3.tools.examining.finding import CHECKS

__all__ = ["CHECKS"]
