"""All checks. Each is declared in one of these modules, with the function that finds it or for a probe to report."""

# They fill CHECKS, in this order.
from marl_sb3.tools.examining.checks import values, agents, dependence, reported  # noqa: F401, I001
from marl_sb3.tools.examining.finding import CHECKS

__all__ = ["CHECKS"]
