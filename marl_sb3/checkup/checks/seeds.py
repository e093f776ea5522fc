"""Checks of randomness: the same seed has to give the same episode, and nothing else may change it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from marl_sb3.checkup.evidence import Comparisons, Difference, Evidence, Seen
from marl_sb3.checkup.finding import Check, Severity
from marl_sb3.config.values import counted


def _at(difference: Difference, how: str) -> Seen:
    return Seen(f"{difference.what} differs {how}", None, 0, difference.step)


def draws_from_globals(evidence: Evidence) -> Iterator[Seen]:
    """Find draws from, or seeds of, the global generators."""
    compared = evidence.comparisons
    if compared is None or not compared.moved:
        return
    names = " and ".join(compared.moved)
    if compared.fresh is not None and compared.fresh_with_globals is None:
        yield _at(compared.fresh, f"with the same seed, unless {names} is seeded from outside")
    else:
        yield Seen(f"the state of the global generator of {names} changes during an episode", None, 0)


def unseeded(evidence: Evidence) -> Iterator[Seen]:
    """Find different episodes with the same seed in new envs, if the global generators are not to blame."""
    compared = evidence.comparisons
    if compared is None or compared.fresh is None or (compared.fresh_with_globals is None and compared.moved):
        return
    yield _at(compared.fresh, "between two new envs with the same seed and actions")


def _repeatable(evidence: Evidence) -> Comparisons:
    """Return comparisons in which only episodes that can be repeated in new envs are judged."""
    compared = evidence.comparisons
    return compared if compared is not None and compared.fresh is None else Comparisons(other_seed=_UNKNOWN)


_UNKNOWN = Difference(0, "")


def seed_ignored(evidence: Evidence) -> Iterator[Seen]:
    """Find new envs that play the same whatever the seed, while a reset to a seed goes on with other numbers."""
    compared = _repeatable(evidence)
    if compared.again is not None and compared.other_seed is None:
        yield _at(compared.again, "when the env is reset with the same seed again; new envs are alike with any seed")


def leaks(evidence: Evidence) -> Iterator[Seen]:
    """Find another episode with the same seed after other episodes."""
    compared = _repeatable(evidence)
    if compared.again is not None and compared.other_seed is not None:
        yield _at(compared.again, "when the same seed is played again after other episodes")


def shared(evidence: Evidence) -> Iterator[Seen]:
    """Find an episode that differs if another env is stepped in between."""
    compared = _repeatable(evidence)
    if compared.interleaved is not None and not compared.moved:
        yield _at(compared.interleaved, "with the same seed when another env is stepped in between")


def no_randomness(evidence: Evidence) -> Iterator[Seen]:
    """Find envs in which all seeds give the same episodes."""
    compared = _repeatable(evidence)
    if compared.again is None and compared.other_seed is None:
        episodes, steps = compared.alike
        played = f"{counted(episodes, 'episode')}, {counted(steps, 'env step')}"
        yield Seen(f"two seeds give the same for the same random actions ({played})")


_check = partial(Check, after="seeds")
_SEEDING = "Make a generator in reset(): self.rng = np.random.default_rng(seed); draw from it alone."

SEEDS: tuple[Check, ...] = (
    _check(
        "global-rng", Severity.FAULT, "the env uses a global random generator",
        "All envs and SB3 itself draw from that generator: no episode can be repeated, and an env that seeds it "
        "makes the exploration of all policies repeat itself.",
        _SEEDING, draws_from_globals,
    ),
    _check(
        "unseeded", Severity.FAULT, "the same seed gives different episodes",
        "No run can be repeated or resumed exactly, and comparisons between settings are noisier.",
        f"{_SEEDING} Seed spaces too if the env samples from them.", unseeded,
    ),
    _check(
        "seed-ignored", Severity.FAULT, "reset(seed=...) does not seed the env",
        "All envs of a vectorizer play the same episodes, so more envs bring no more experience.",
        _SEEDING, seed_ignored,
    ),
    _check(
        "state-leaks", Severity.FAULT, "an episode depends on the episodes before it",
        "No episode can be repeated from its seed, as exact resumes and evaluations do.",
        "Set everything that an episode changes anew in reset().", leaks,
    ),
    _check(
        "shared-state", Severity.FAULT, "two envs influence each other",
        "The envs of a vectorizer run in turns in one process, and change each other's episodes.",
        "Keep everything that changes in the instance: no class attributes, module globals or default arguments that "
        "are changed.", shared,
    ),
    Check(
        "same-for-every-seed", Severity.ADVICE, "the env's seed has changed nothing",
        "If the env should be random, its seed is not used, or its randomness is rare.",
        f"Nothing if the env is meant to be deterministic. {_SEEDING}", no_randomness, "replays",
    ),
)  # fmt: skip
