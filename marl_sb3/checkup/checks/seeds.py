"""Checks of randomness: the same seed has to give the same episode, and nothing else may change it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from marl_sb3.checkup.evidence import Comparisons, Difference, Evidence, Seen
from marl_sb3.checkup.finding import Check, Severity
from marl_sb3.config.values import counted


def _at(found: Difference, how: str) -> Seen:
    return Seen(f"{found.what} differs {how}", None, 0, found.step)


def draws_from_globals(evidence: Evidence) -> Iterator[Seen]:
    """The env draws from, or seeds, the global generators."""
    found = evidence.comparisons
    if found is None:
        return
    names = " and ".join(found.moved)
    if found.fresh is not None and found.fresh_with_globals is None and found.moved:
        yield _at(found.fresh, f"with the same seed, unless {names} is seeded from outside")
    elif found.moved:
        yield Seen(f"the state of the global generator of {names} changes during an episode", None, 0)


def unseeded(evidence: Evidence) -> Iterator[Seen]:
    """The same seed gives different episodes in new envs, and the global generators are not to blame."""
    found = evidence.comparisons
    if found is not None and found.fresh is not None and (found.fresh_with_globals is not None or not found.moved):
        yield _at(found.fresh, "between two new envs with the same seed and actions")


def _repeatable(evidence: Evidence) -> Comparisons | None:
    found = evidence.comparisons
    return found if found is not None and found.fresh is None else None


def seed_ignored(evidence: Evidence) -> Iterator[Seen]:
    """New envs play the same whatever the seed, but an env that is reset to a seed goes on with other numbers."""
    found = _repeatable(evidence)
    if found is not None and found.again is not None and found.other_seed is None:
        yield _at(found.again, "when the env is reset with the same seed again; new envs are alike with any seed")


def leaks(evidence: Evidence) -> Iterator[Seen]:
    """The same seed gives another episode after other episodes."""
    found = _repeatable(evidence)
    if found is not None and found.again is not None and found.other_seed is not None:
        yield _at(found.again, "when the same seed is played again after other episodes")


def shared(evidence: Evidence) -> Iterator[Seen]:
    """An episode differs if another env is stepped in between."""
    found = _repeatable(evidence)
    if found is not None and found.interleaved is not None and not found.moved:
        yield _at(found.interleaved, "with the same seed when another env is stepped in between")


def no_randomness(evidence: Evidence) -> Iterator[Seen]:
    """All seeds give the same episodes."""
    found = _repeatable(evidence)
    if found is not None and found.again is None and found.other_seed is None:
        episodes, steps = found.alike
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
