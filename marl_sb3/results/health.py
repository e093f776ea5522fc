"""Hints on what looks wrong in a training, in plain words: pure functions from columns of metrics to problems.

Their texts are in `health.json`. A problem is a reason to look closer, not a proof. The bounds are far from what whole
trainings of the presets show.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marl_sb3.core.config.values import counted
from marl_sb3.core.metrics.opposition import Opposition
from marl_sb3.extensions.display.text import short
from marl_sb3.types import AgentID, PolicyID

Column = npt.NDArray[np.float64]  # a value for each iteration; NaN where there is none
Columns = Mapping[str, Column]  # by the flat name of a metric

LEAST_ITERATIONS = 12  # of fewer, nothing but the size of steps is judged

# Problem -> its fields in `Problem`; texts in braces are put in where it is found.
_TEXTS: Mapping[str, Mapping[str, str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

_MOST_KL, _HUGE_KL, _OFTEN = 0.1, 1.0, 0.1  # too high if often, too high if once; share of updates
_MOST_CLIPPED = 0.35  # share of the samples, median over the run
_STILL_KL = 1e-5  # below: the policy stays as it is
_LEAST_EXPLAINED, _LEARNED_ERROR = 0.05, 0.01  # of the variance; error left, as a share of the largest
_COLLAPSED, _NATS = 0.05, 3.0  # of the entropy at the start; fall for each number of a continuous action
_GAUSSIAN = 1.4189  # nats, entropy of a normal distribution of SD 1, SB3's at the start: (1 + ln(2 pi)) / 2
_GROWN = 1.4  # times the entropy at the start
_EXPLODED = 1000.0  # times what it was in the first quarter of the run
_RANDOM = 0.5  # share of random actions at the end
_HOT = 10.0  # entropy coefficient
_FELL, _LEAST_FALL = 1 / 3, 0.25  # share of what was gained; of the spread of the returns of episodes
_LEAST_GAIN = 0.1  # of that spread
_MOST_LINES = 2  # with the one that says where there is more, three
_STARVED = 0.05  # of the actions that the others take on average


@dataclass(frozen=True)
class Problem:
    """Something that looks wrong."""

    id: str  # what is wrong, a name in `health.json`
    subject: str  # what it is about: `policy shared`, `agent agent1`, `all agents` or `training`
    title: str  # what is seen, in a few words
    metric: str  # flat name of the metric that shows it
    value: float  # what was found of it
    usual: str  # what is usual
    meaning: str  # what it may mean
    remedy: str  # what to try
    source: str = ""  # where the bound or the advice is from; empty: experience with the presets


def find_problems(columns: Columns, *, begins_trained: bool = False) -> list[Problem]:
    """Look at the metrics of a run; a healthy one gives an empty list.

    Args:
        columns: all metrics of the run, each with a value per iteration; those that are missing are not judged.
        begins_trained: whether its policies began with weights of other trainings, and their return need not rise.
    """
    found = [problem for check in _OF_TRAININGS for problem in check(columns)]
    if begins_trained:
        found = [problem for problem in found if problem.id != "not risen"]
    opposed = _opposes(columns)
    for policy_id in policies_in(columns):
        learner = _Learner(policy_id, columns, opposed)
        found += [problem for check in _OF_LEARNERS for problem in check(learner)]
    return found


def hints(problems: Sequence[Problem], more: str) -> list[str]:
    """Return the first problems in at most three lines.

    Args:
        more: says what has all of them: `python -m marl_sb3.report runs/a`.
    """
    lines = []
    for each in problems[:_MOST_LINES]:
        about = "" if each.subject == "training" else f"{each.subject}: "
        remedy = each.remedy.partition(";")[0].partition(". ")[0].rstrip(".")
        try_it = f"{remedy[:1].lower()}{remedy[1:]}"
        lines.append(f"looks wrong: {about}{each.title}, {short(each.value)} (usual: {each.usual}). Try: {try_it}")
    others = len(problems) - len(lines)
    rest = f"{counted(others, 'hint')} more, and what they may mean" if others else "what it may mean"
    return [*lines, f"{rest}: {more}"] if lines else []


def policies_in(columns: Columns) -> list[PolicyID]:
    """Return the policies that learned, in their order."""
    names = (name.removeprefix(_LEARNERS).rpartition("/") for name in columns if name.startswith(_LEARNERS))
    return list(dict.fromkeys(policy_id for policy_id, _, _ in names if policy_id))


def by_agent(columns: Columns, metric: str) -> dict[AgentID, Column]:
    """Return the columns of a metric that has a value for each agent or policy: `num_agent_steps_sampled_lifetime`."""
    prefix = f"{metric}/"
    return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}


_LEARNERS = "learners/"
_RETURN = "env_runners/episode_return"


@dataclass(frozen=True)
class _Learner:
    """The metrics of a policy's updates."""

    policy_id: PolicyID
    columns: Columns = field(repr=False)
    opposed: bool  # whether agents win what others lose

    def name(self, metric: str) -> str:
        return f"{_LEARNERS}{self.policy_id}/{metric}"

    def known(self, metric: str) -> Column:
        """The values of a metric, without missing ones."""
        return _known(self.columns.get(self.name(metric)))

    def quarters(self, metric: str) -> list[float]:
        """The medians of a metric over the quarters of the run; empty if there are too few values."""
        values = self.known(metric)
        return [float(np.median(part)) for part in np.array_split(values, 4)] if len(values) >= LEAST_ITERATIONS else []

    def problem(self, name: str, value: float, **put_in: Any) -> Problem:
        """What is wrong with the policy."""
        metric = self.name(_TEXTS[name]["metric"])
        return _problem(name, value, subject=f"policy {self.policy_id}", metric=metric, **put_in)


def _problem(name: str, value: float, *, subject: str = "training", metric: str = "", **put_in: Any) -> Problem:
    texts = {field: text.format(**put_in) for field, text in _TEXTS[name].items()}
    texts["metric"] = metric or texts["metric"]
    return Problem(id=name, subject=subject, value=value, **texts)


def _known(column: Column | None) -> Column:
    return np.empty(0) if column is None else column[np.isfinite(column)]


# --- Updates of a policy ----------------------------------------------------------------------------------------------


def _kl(learner: _Learner) -> Iterator[Problem]:
    """Steps that change the policy too much, often or once."""
    values = learner.known("mean_kl_loss")
    if not len(values):
        return
    often = float(np.quantile(values, 1.0 - _OFTEN))
    if often > _MOST_KL or values.max() > _HUGE_KL:
        yield learner.problem("kl", often if often > _MOST_KL else float(values.max()))


def _clipping(learner: _Learner) -> Iterator[Problem]:
    """Most of the samples are clipped."""
    values = learner.known("clip_fraction")
    if len(values) >= LEAST_ITERATIONS and (middle := float(np.median(values))) > _MOST_CLIPPED:
        yield learner.problem("clipped", middle)


def _stillness(learner: _Learner) -> Iterator[Problem]:
    """The policy hardly changes, from the start on."""
    quarters, rates = learner.quarters("mean_kl_loss"), learner.known("curr_lr")
    collapsed = learner.quarters("entropy")[-1:] < [_COLLAPSED * value for value in learner.known("entropy")[:1]]
    if quarters and max(quarters) <= _STILL_KL and not collapsed:
        yield learner.problem("no learning rate" if len(rates) and rates.max() == 0.0 else "still", max(quarters))


def _values(learner: _Learner) -> Iterator[Problem]:
    """The value function explains nothing in the second half of the run, and its error is not small either."""
    explained, errors = learner.quarters("vf_explained_var"), learner.quarters("vf_loss")
    if not explained or max(explained[2:]) >= _LEAST_EXPLAINED or learner.opposed:
        return  # Where both sides play well, as in rock, paper, scissors, nothing can be foreseen.
    if errors and errors[-1] < _LEARNED_ERROR * max(errors):
        return  # Returns that hardly differ, as at the end of CartPole, leave nothing to be explained.
    worse = " It is worse than the mean of the returns." if explained[-1] < 0 else ""
    yield learner.problem("values", explained[-1], worse=worse)


def _entropy(learner: _Learner) -> Iterator[Problem]:
    """The actions are no longer random long before the end, or become ever more random."""
    values, quarters = learner.known("entropy"), learner.quarters("entropy")
    if not quarters or values[0] <= 0.0:
        return
    first, middle = float(values[0]), float(np.median(np.array_split(values, 4)[1]))
    is_continuous = values.min() < 0.0  # only differential entropy is negative
    lowest = first - _NATS * max(1, round(first / _GAUSSIAN)) if is_continuous else _COLLAPSED * first
    if middle < lowest:
        yield learner.problem("collapsed", middle, lowest=short(lowest), first=short(first))
    elif quarters[-1] > _GROWN * first:
        yield learner.problem("more random", quarters[-1], first=short(first))


def _explosions(learner: _Learner) -> Iterator[Problem]:
    """Gradients, or the losses of critics, have grown beyond all bounds."""
    for metric in ("gradients_global_norm", "critic_loss", "qf_loss"):
        quarters = learner.quarters(metric)
        if quarters and quarters[-1] > _EXPLODED * max(quarters[0], 1e-3):
            yield learner.problem(metric, quarters[-1], first=short(quarters[0]))


def _randomness(learner: _Learner) -> Iterator[Problem]:
    """Exploration that is still at work at the end."""
    if len(rates := learner.known("exploration_rate")) and rates[-1] > _RANDOM:
        yield learner.problem("random", float(rates[-1]))
    if len(coefficients := learner.known("ent_coef")) and coefficients[-1] > _HOT:
        yield learner.problem("hot", float(coefficients[-1]))


# --- The training ----------------------------------------------------------------------------------------------------


def _unended(columns: Columns) -> Iterator[Problem]:
    """No episode has ended."""
    returns = columns.get(f"{_RETURN}_mean")
    if returns is not None and len(returns) and not np.isfinite(returns).any():
        yield _problem("unended", _last(columns, "num_episodes_lifetime"))


def _returns(columns: Columns) -> Iterator[Problem]:
    """The return has fallen again, or has never risen; not where agents win what others lose."""
    returns = _known(columns.get(f"{_RETURN}_mean"))
    if len(returns) < LEAST_ITERATIONS or _opposes(columns):
        return
    spread = _known(columns.get(f"{_RETURN}_max")) - _known(columns.get(f"{_RETURN}_min"))
    typical = float(np.median(spread) or spread.max()) if len(spread) else 0.0  # most windows may have one value alone
    tenths = [float(np.mean(part)) for part in np.array_split(returns, 10)]
    first, best, last = tenths[0], max(tenths), tenths[-1]
    if best - last > max(_FELL * (best - first), _LEAST_FALL * typical):
        yield _problem("fallen", last, best=short(best))
    elif best - first < _LEAST_GAIN * typical:
        yield _problem("not risen", last, first=short(first))


def _opposes(columns: Columns) -> bool:
    """Whether the agents' returns oppose each other: then the sum says little, and a side may lose."""
    agents = by_agent(columns, f"{_RETURN.replace('episode_return', 'agent_episode_returns')}_mean")
    opposition = Opposition(list(agents))
    for row in zip(*agents.values(), strict=True):
        opposition.add(dict(zip(agents, (None if np.isnan(value) else float(value) for value in row), strict=True)))
    return opposition.words(certain=False) is not None  # there are few iterations, and only hints depend on it


def _starvation(columns: Columns) -> Iterator[Problem]:
    """An agent hardly acts, or is paid the same whatever happens."""
    steps = {a: float(c[-1]) for a, c in by_agent(columns, "num_agent_steps_sampled_lifetime").items() if len(c)}
    for agent, own in steps.items():
        others = [value for other, value in steps.items() if other != agent]
        if others and own < _STARVED * (typical := float(np.mean(others))):
            yield _problem("starved", own, subject=f"agent {agent}", agent=agent, typical=short(typical))
    returns = by_agent(columns, "env_runners/agent_episode_returns_mean")
    known = {agent: _known(column) for agent, column in returns.items()}
    same = sorted(a for a, values in known.items() if len(values) >= LEAST_ITERATIONS and np.ptp(values) == 0.0)
    everybody = len(same) == len(known)  # said once
    for agent in same[:1] if everybody else same:
        subject = "all agents" if everybody else f"agent {agent}"
        yield _problem("unpaid", float(known[agent][0]), subject=subject, agent=agent)


def _restarts(columns: Columns) -> Iterator[Problem]:
    """Processes that step envs had to be replaced."""
    if (count := _last(columns, "fault_tolerance/num_worker_restarts")) > 0:
        yield _problem("restarts", count)


def _last(columns: Columns, name: str) -> float:
    values = _known(columns.get(name))
    return float(values[-1]) if len(values) else 0.0


_OF_TRAININGS = (_unended, _returns, _starvation, _restarts)
_OF_LEARNERS = (_kl, _clipping, _stillness, _values, _entropy, _explosions, _randomness)
