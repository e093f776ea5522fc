"""Simulate the tests of a search: how often is its objective refused without a reason, or a worse trial chosen?

    python benchmarks/search_errors.py [--trials 1000] [--races 1000]

First trials of agents that have nothing to do with each other: the search should not end because their returns oppose
each other. Their returns are noise; or each agent becomes better or worse for reasons of its own; or few episodes bring
anything; or some bring very much.

Races of three trials against the preset, with nine kinds of noise of the trainings: a trial that is truly worse should
not be chosen. In half of the races the trials are on average better than the preset, but some of their trainings
collapse, in 0 to 30 % of the seeds, and 2 % of the preset's. Of the races that a trial wins: the gain that is
announced, of seeds that had no part in the choice, and that of the race; in how many each interval holds the true gain,
and by how much each is too large on average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from command_line import add_count, parser
from measure import Report, Setting

from marl_sb3.core.metrics.opposition import Opposition
from marl_sb3.tools.tuning.finals import AGAIN, Candidate, Race

EPISODES, BETWEEN_LOOKS = 600, 20  # of a pretended trial
TRAINING_SD, LEVEL, COLLAPSED = 3.0, 40.0, 10.0  # of a training, as in the arena; the preset's mean; after a collapse
COLLAPSES = (0.0, 0.05, 0.1, 0.2, 0.3)  # shares of a trial's trainings
Draw = Callable[[np.random.Generator, Any], Any]

RETURNS: Mapping[str, Draw] = {
    "noise": lambda rng, shape: rng.normal(size=shape),
    "learning": lambda rng, shape: (
        rng.normal(size=shape) + np.linspace(0.0, 1.0, shape[0])[:, None] * rng.normal(0.0, 3.0, shape[1])
    ),
    "rare": lambda rng, shape: np.asarray(rng.uniform(size=shape) < 0.1, float),
    "heavy tails": lambda rng, shape: rng.standard_t(2, size=shape),
}
NOISES: Mapping[str, Draw] = {  # most have a standard deviation of 1
    "normal": lambda rng, n: rng.normal(size=n),
    "t of 3": lambda rng, n: rng.standard_t(3, size=n) / 3**0.5,
    "t of 2": lambda rng, n: rng.standard_t(2, size=n) / 2,
    "exponential": lambda rng, n: rng.exponential(size=n) - 1.0,
    "exponential downwards": lambda rng, n: 1.0 - rng.exponential(size=n),
    "lognormal": lambda rng, n: (np.exp(rng.normal(size=n)) - np.exp(0.5)) / 2.16,
    "two peaks": lambda rng, n: np.where(rng.uniform(size=n) < 0.5, -1.0, 1.0) + rng.normal(0.0, 0.2, n),
    "rounded": lambda rng, n: np.round(rng.normal(size=n)),
    "uniform": lambda rng, n: rng.uniform(-(3**0.5), 3**0.5, n),
}


def seems_opposed(kind: str, agents: int, seed: int) -> tuple[bool, bool]:
    """Whether a first trial ends because of its returns, and whether it is in doubt at its end."""
    rows = RETURNS[kind](np.random.default_rng([seed, agents]), (EPISODES, agents))
    names = [f"agent{i}" for i in range(agents)]
    opposition = Opposition(names)
    for number, row in enumerate(rows.tolist(), start=1):
        opposition.add(dict(zip(names, row, strict=True)))
        if number % BETWEEN_LOOKS == 0 and opposition.words() is not None:
            return True, False
    return False, opposition.doubt() is not None


class Won(NamedTuple):
    """What came of a race that a trial has won."""

    gain: float  # by how much it is truly better than the preset
    announced: tuple[float, float, float]  # the gain of fresh seeds, and its interval
    raced: tuple[float, float, float]  # those of the race


def won_race(noise: str, seeds: int, seed: int, *, collapses: bool) -> Won | None:
    """Return what came of a race; None if the preset is kept."""
    rng = np.random.default_rng(seed)
    means = LEVEL + np.append(0.0, rng.normal(2.0 if collapses else -0.5, 2.0, 3))
    shares = np.append(0.02, rng.choice(COLLAPSES, 3)) * collapses
    true = means * (1.0 - shares) + COLLAPSED * shares
    drawn = []
    for mean, share in zip(means, shares, strict=True):
        values = mean + TRAINING_SD * NOISES[noise](rng, 2 * seeds)  # those of the race, and those after it
        collapsed = COLLAPSED + rng.normal(size=2 * seeds)
        drawn.append(np.where(rng.uniform(size=2 * seeds) < share, collapsed, values).tolist())
    values: list[dict[int, float]] = [{} for _ in drawn]
    while True:
        race = Race([Candidate(trial or None, each) for trial, each in enumerate(values)], seeds)
        if not (missing := race.missing()):
            break
        for candidate, index in missing:
            place = index if index < seeds else seeds + index - AGAIN
            values[candidate.trial or 0][index] = drawn[candidate.trial or 0][place]
    winner = race.winner()
    if winner.trial is None:
        return None
    gain = float(true[winner.trial] - true[0])
    return Won(gain, race.difference(winner, again=True), race.difference(winner))


def summary(found: Sequence[Won | None]) -> dict[str, float]:
    """What came of races: shares of all, the mean gain and loss over the preset, and what is said of those that won."""
    won = [each for each in found if each is not None]
    chosen, said = [each.gain for each in won], {}
    for name in ("announced", "raced") if won else ():
        intervals = [getattr(each, name) for each in won]
        holds = [low <= each.gain <= high for each, (_, low, high) in zip(won, intervals, strict=True)]
        too_much = [gain - each.gain for each, (gain, _, _) in zip(won, intervals, strict=True)]
        said |= {f"{name} holds": fmean(holds), f"{name} too large by": fmean(too_much)}
    worse = [gain for gain in chosen if gain < 0.0]
    loss = -fmean(worse) if worse else 0.0
    return {"chosen": len(chosen) / len(found), "worse": len(worse) / len(found), "loss": loss,
            "gain": sum(chosen) / len(found), **said}  # fmt: skip


SETTING = Setting(
    "first trials of 600 episodes, and races of 3 trials against the preset, pretended",
    {"training_sd": TRAINING_SD, "level": LEVEL, "collapsed": COLLAPSED},
    "one thread",
    {},
    ("marl_sb3", "numpy"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parser(__doc__, repeats=None)
    add_count(options, "--trials", 1000, "first trials of each kind")
    add_count(options, "--races", 1000, "races with each noise")
    arguments = options.parse_args(argv)
    SETTING.print()
    opposed: dict[str, Sequence[float]] = {}
    for kind in RETURNS:
        for agents in (2, 3, 5):
            found = [seems_opposed(kind, agents, seed) for seed in range(arguments.trials)]
            name = f"{kind}, {agents} agents"
            opposed[name] = [fmean(each) for each in zip(*found, strict=True)]
            print(
                f"{name:30s} ends {100 * opposed[name][0]:.1f} %, in doubt {100 * opposed[name][1]:.1f} %", flush=True
            )
    races: dict[str, Any] = {}
    for seeds in (10, 20):
        for collapses in (False, True):
            name = f"{seeds} seeds{', collapses' * collapses}"
            by_noise = [
                [won_race(noise, seeds, seed, collapses=collapses) for seed in range(arguments.races)]
                for noise in NOISES
            ]
            races[name] = summary([gain for gains in by_noise for gain in gains])
            worst = max(summary(gains)["worse"] for gains in by_noise)
            least = min(summary(gains).get("announced holds", 1.0) for gains in by_noise)
            shown = ", ".join(f"{what} {value:.3f}" for what, value in races[name].items())
            print(f"{name:30s} {shown}; worst noise: worse {worst:.3f}, holds {least:.3f}", flush=True)
    Report("search_errors", SETTING, {"opposed": {"raw": opposed}, "races": {"raw": races}}).write(arguments.json)


if __name__ == "__main__":
    main()
