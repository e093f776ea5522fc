"""How many env steps rollouts and iterations have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marl_sb3.learners.learner import Learner
from marl_sb3.learners.sb3.build import is_off_policy
from marl_sb3.learners.spec import PolicySpec
from marl_sb3.types import PolicyID


def common_steps(n_steps: int | None, specs: Mapping[PolicyID, PolicySpec]) -> int | None:
    """Return the length of rollouts for specs without `n_steps`.

    It is the given one, else that of the first spec with `n_steps`, else None: SB3's default.
    """
    on_policy = [
        spec for spec in specs.values() if not is_off_policy(spec.algorithm)
    ]  # the `n_steps` of others is that of n-step returns
    own = [spec.hyperparameters["n_steps"] for spec in on_policy if "n_steps" in spec.hyperparameters]
    return n_steps if n_steps is not None else next(iter(own), None)


def iteration_steps(learners: Sequence[Learner], n_steps: int | None) -> int:
    """Return the env steps of each env in an iteration.

    They are as given. Else an iteration is as long as the longest rollout, times the fewest rollouts that a policy has
    in an iteration of its own; without rollouts, it is the longest one of a policy.
    """
    if n_steps is not None:
        return n_steps
    paces = [learner.pace for learner in learners]
    rollouts = [(pace.report_steps, pace.rollout_steps) for pace in paces if pace.rollout_steps is not None]
    if not rollouts:
        return max(pace.report_steps for pace in paces)
    return max(steps for _, steps in rollouts) * min(report // steps for report, steps in rollouts)
