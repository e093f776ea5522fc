"""The two ways in which marl_sb3's own algorithms update: fused, or with PyTorch, which equals SB3 bit for bit."""

from __future__ import annotations

import logging

from marl_sb3.errors import ConfigError
from marl_sb3.learners.threads import load_blas

UPDATE_PATHS = ("auto", "fused", "torch")
_EARLIER_NAMES = {"lean": "torch"}  # earlier names, still accepted

_log = logging.getLogger(__name__)


class TwoPaths:
    """A mixin for SB3's algorithms: updates by the *fused* path or by the *torch* path.

    The fused path is faster and equals SB3 to floating point tolerance; the torch path takes every policy and equals
    SB3 bit for bit.

    Attributes:
        update_path: `auto` takes the fused path if it covers the policy, see `why_not_fused`; `fused` and `torch` force
            one. May be set at any time between updates.
    """

    update_path: str = "auto"

    def why_not_fused(self) -> str | None:
        """Return the reason why the fused path does not cover the policy, as a string; None if it does."""
        raise NotImplementedError

    def takes_fused_path(self) -> bool:
        """Whether updates take the fused path.

        Raises:
            ConfigError: that path is forced but does not cover the policy, or the path has an unknown name.
        """
        path = _EARLIER_NAMES.get(self.update_path, self.update_path)
        if path not in UPDATE_PATHS:
            raise ConfigError(
                f"update_path is {self.update_path!r}; accepted: {', '.join(UPDATE_PATHS)}", key="update_path"
            )
        if path == "torch":
            return False
        reason = self.why_not_fused()
        if path == "fused" and reason is not None:
            raise ConfigError(f"the fused update does not cover this policy: {reason}", key="update_path")
        return reason is None


def choose_path(policy_id: str, algorithm: TwoPaths, update_path: str) -> None:
    """Set the path of a policy's algorithm, check that it covers the policy, and log which path is taken.

    Raises:
        ConfigError: see `TwoPaths.takes_fused_path`.
    """
    if update_path != "auto":  # otherwise a subclass may have set its own
        algorithm.update_path = update_path
    fused = algorithm.takes_fused_path()
    if fused:
        load_blas()
    reason = "" if fused or algorithm.update_path != "auto" else f" ({algorithm.why_not_fused()})"
    _log.info("policy %s: %s update%s", policy_id, "fused" if fused else "torch", reason)
