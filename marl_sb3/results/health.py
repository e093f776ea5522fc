"""Hints on what looks wrong in a training, in plain words: pure functions from columns of metrics to findings.

A finding is a reason to look closer, not a proof. The bounds are far from what whole trainings of the presets show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from marl_sb3.core.config import counted
from marl_sb3.core.metrics import Opposition
from marl_sb3.extensions.display import short
from marl_sb3.types import AgentID, PolicyID

Column = npt.NDArray[np.float64]  # a value for each iteration; NaN where there is none
Columns = Mapping[str, Column]  # by the flat name of a metric

LEAST_ITERATIONS = 12  # of fewer, nothing but the size of steps is judged

_NOT_RISEN = "the return has not risen"
_NUTS = "Schulman, The Nuts and Bolts of Deep RL Research, 2016"
_DETAILS = "Huang et al., The 37 Implementation Details of Proximal Policy Optimization, ICLR Blog Track, 2022"
_LOGGER = "Stable-Baselines3, Logger, explanation of logger output"
_SPINNING_UP = "Spinning Up, PPO, target_kl"
_DOUBLE = "van Hasselt et al., Deep Reinforcement Learning and the Deadly Triad, 2018"
_SAC = "Haarnoja et al., Soft Actor-Critic Algorithms and Applications, 2018, section 5"

_KL, _MOST_KL, _HUGE_KL, _OFTEN = 0.02, 0.1, 1.0, 0.1  # usual, too high if often, too high if once; share of updates
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
class Finding:
    """Something that looks wrong."""

    subject: str  # what it is about: `policy shared`, `agent agent1`, `all agents` or `training`
    title: str  # what is seen, in a few words
    metric: str  # flat name of the metric that shows it
    value: float  # what was found of it
    usual: str  # what is usual
    meaning: str  # what it may mean
    remedy: str  # what to try
    source: str = ""  # where the bound or the advice is from; empty: experience with the presets


def find_problems(columns: Columns, *, begins_trained: bool = False) -> list[Finding]:
    """Look at the metrics of a run; a healthy one gives an empty list.

    Args:
        columns: all metrics of the run, each with a value per iteration; those that are missing are not judged.
        begins_trained: whether its policies began with weights of other trainings, and their return need not rise.
    """
    found = [finding for check in _OF_TRAININGS for finding in check(columns)]
    if begins_trained:
        found = [finding for finding in found if finding.title != _NOT_RISEN]
    opposed = _opposes(columns)
    for policy_id in policies_in(columns):
        learner = _Learner(policy_id, columns, opposed)
        found += [finding for check in _OF_LEARNERS for finding in check(learner)]
    return found


def hints(findings: Sequence[Finding], more: str) -> list[str]:
    """Return the first findings in at most three lines.

    Args:
        more: says what has all of them: `python -m marl_sb3.report runs/a`.
    """
    lines = []
    for each in findings[:_MOST_LINES]:
        about = "" if each.subject == "training" else f"{each.subject}: "
        remedy = each.remedy.partition(";")[0].partition(". ")[0].rstrip(".")
        try_it = f"{remedy[:1].lower()}{remedy[1:]}"
        lines.append(f"looks wrong: {about}{each.title}, {short(each.value)} (usual: {each.usual}). Try: {try_it}")
    others = len(findings) - len(lines)
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

    def finding(
        self, title: str, metric: str, value: float, usual: str, texts: tuple[str, str], source: str
    ) -> Finding:
        meaning, remedy = texts
        return Finding(f"policy {self.policy_id}", title, self.name(metric), value, usual, meaning, remedy, source)


def _known(column: Column | None) -> Column:
    return np.empty(0) if column is None else column[np.isfinite(column)]


# --- Updates of a policy ----------------------------------------------------------------------------------------------


def _kl(learner: _Learner) -> Iterator[Finding]:
    """Steps that change the policy too much, often or once."""
    values = learner.known("mean_kl_loss")
    if not len(values):
        return
    often = float(np.quantile(values, 1.0 - _OFTEN))
    if often > _MOST_KL or values.max() > _HUGE_KL:
        value = often if often > _MOST_KL else float(values.max())
        yield learner.finding(
            "the KL divergence explodes",
            "mean_kl_loss",
            value,
            f"about {_KL:g} or less",
            (
                "Updates change the policy so much that the rollouts of the old one hardly apply to the new one. "
                "Returns may fall and never recover.",
                "A lower learning_rate, or lin_ before it so that it falls; fewer n_epochs; target_kl=0.02, which ends "
                "an update early.",
            ),
            f"{_DETAILS}; {_SPINNING_UP}",
        )


def _clipping(learner: _Learner) -> Iterator[Finding]:
    """Most of the samples are clipped."""
    values = learner.known("clip_fraction")
    if len(values) >= LEAST_ITERATIONS and (middle := float(np.median(values))) > _MOST_CLIPPED:
        yield learner.finding(
            "most of each update is clipped",
            "clip_fraction",
            middle,
            "0.05 to 0.3",
            (
                "Many samples have left the clip range before an update is over, and no longer have a gradient.",
                "A lower learning_rate, fewer n_epochs, or larger minibatches (batch_size).",
            ),
            _DETAILS,
        )


def _stillness(learner: _Learner) -> Iterator[Finding]:
    """The policy hardly changes, from the start on."""
    quarters, rates = learner.quarters("mean_kl_loss"), learner.known("curr_lr")
    collapsed = learner.quarters("entropy")[-1:] < [_COLLAPSED * value for value in learner.known("entropy")[:1]]
    if not quarters or max(quarters) > _STILL_KL or collapsed:
        return
    if len(rates) and rates.max() == 0.0:
        texts = "Its learning rate is 0: its weights stay as they are.", "Set a learning_rate, if it is to learn."
    else:
        texts = (
            "Its updates are too small to change its actions.",
            "A higher learning_rate or more n_epochs; if advantages are all 0, look at the rewards.",
        )
    yield learner.finding("the policy hardly changes", "mean_kl_loss", max(quarters), "0.001 to 0.02", texts, "")


def _values(learner: _Learner) -> Iterator[Finding]:
    """The value function explains nothing in the second half of the run, and its error is not small either."""
    explained, errors = learner.quarters("vf_explained_var"), learner.quarters("vf_loss")
    if not explained or max(explained[2:]) >= _LEAST_EXPLAINED or learner.opposed:
        return  # Where both sides play well, as in rock, paper, scissors, nothing can be foreseen.
    if errors and errors[-1] < _LEARNED_ERROR * max(errors):
        return  # Returns that hardly differ, as at the end of CartPole, leave nothing to be explained.
    worse = " It is worse than the mean of the returns." if explained[-1] < 0 else ""
    yield learner.finding(
        "the value function explains nothing",
        "vf_explained_var",
        explained[-1],
        "0.3 to 1 in the second half of the run",
        (
            f"The values do not distinguish good states from bad ones, so that advantages are mostly noise.{worse}",
            "A higher vf_coef; networks that are not shared or larger (policy_kwargs.net_arch); normalize_rewards for "
            "returns in the hundreds; more n_epochs. No setting helps if observations do not determine returns.",
        ),
        f"{_NUTS}; {_LOGGER}",
    )


def _entropy(learner: _Learner) -> Iterator[Finding]:
    """The actions are no longer random long before the end, or become ever more random."""
    values, quarters = learner.known("entropy"), learner.quarters("entropy")
    if not quarters or values[0] <= 0.0:
        return
    first, middle = float(values[0]), float(np.median(np.array_split(values, 4)[1]))
    is_continuous = values.min() < 0.0  # only differential entropy is negative
    lowest = first - _NATS * max(1, round(first / _GAUSSIAN)) if is_continuous else _COLLAPSED * first
    if middle < lowest:
        yield learner.finding(
            "the entropy has collapsed early",
            "entropy",
            middle,
            f"above {short(lowest)} in the first half of a run that starts at {short(first)}",
            (
                "The policy takes nearly the same action each time and tries nothing else. That is good only if its "
                "return is as high as it can be.",
                "A higher ent_coef, such as 0.01; a lower learning_rate.",
            ),
            _NUTS,
        )
    elif quarters[-1] > _GROWN * first:
        yield learner.finding(
            "the actions become ever more random",
            "entropy",
            quarters[-1],
            f"at most {short(first)}, where it starts",
            ("The bonus for entropy outweighs the rewards.", "A lower ent_coef; normalize_rewards for small rewards."),
            "",
        )


def _explosions(learner: _Learner) -> Iterator[Finding]:
    """Gradients, or the losses of critics, have grown beyond all bounds."""
    texts = {
        "gradients_global_norm": (
            "The gradients have grown a thousandfold; their clipping (max_grad_norm) hides this.",
            "A lower learning_rate; normalize_rewards if returns grow as well.",
        ),
        **dict.fromkeys(
            ("critic_loss", "qf_loss"),
            (
                "The Q values diverge: each update raises the targets of the next one.",
                "A lower learning_rate or tau; a lower gamma; normalize_rewards; a larger batch_size.",
            ),
        ),
    }
    for metric, words in texts.items():
        quarters = learner.quarters(metric)
        if quarters and quarters[-1] > _EXPLODED * max(quarters[0], 1e-3):
            usual = f"about {short(quarters[0])}, as in the first quarter of the run"
            source = "" if metric == "gradients_global_norm" else _DOUBLE
            yield learner.finding(f"{_NAMES[metric]} explode", metric, quarters[-1], usual, words, source)


_NAMES = {
    "gradients_global_norm": "gradients",
    "critic_loss": "losses of the critic",
    "qf_loss": "losses of the Q values",
}


def _randomness(learner: _Learner) -> Iterator[Finding]:
    """Exploration that is still at work at the end."""
    if len(rates := learner.known("exploration_rate")) and rates[-1] > _RANDOM:
        yield learner.finding(
            "most actions are random to the end",
            "exploration_rate",
            float(rates[-1]),
            "0.01 to 0.1 at the end",
            ("The returns are those of random actions.", "A lower exploration_fraction, or more env steps."),
            "",
        )
    if len(coefficients := learner.known("ent_coef")) and coefficients[-1] > _HOT:
        yield learner.finding(
            "the entropy coefficient explodes",
            "ent_coef",
            float(coefficients[-1]),
            "below 1",
            (
                "The entropy stays below its target however large its weight: the rewards no longer count.",
                "A lower target_entropy, or a fixed ent_coef.",
            ),
            _SAC,
        )


# --- The training ----------------------------------------------------------------------------------------------------


def _unended(columns: Columns) -> Iterator[Finding]:
    """No episode has ended."""
    returns = columns.get(f"{_RETURN}_mean")
    if returns is not None and len(returns) and not np.isfinite(returns).any():
        yield Finding(
            "training",
            "no episode has ended",
            "num_episodes_lifetime",
            float(_last(columns, "num_episodes_lifetime")),
            "many episodes",
            "Without returns it is unknown whether anything is learned.",
            "More env steps, or an env that ends its episodes, such as by a time limit.",
        )


def _returns(columns: Columns) -> Iterator[Finding]:
    """The return has fallen again, or has never risen; not where agents win what others lose."""
    returns = _known(columns.get(f"{_RETURN}_mean"))
    if len(returns) < LEAST_ITERATIONS or _opposes(columns):
        return
    spread = _known(columns.get(f"{_RETURN}_max")) - _known(columns.get(f"{_RETURN}_min"))
    typical = float(np.median(spread) or spread.max()) if len(spread) else 0.0  # most windows may have one value alone
    tenths = [float(np.mean(part)) for part in np.array_split(returns, 10)]
    first, best, last = tenths[0], max(tenths), tenths[-1]
    if best - last > max(_FELL * (best - first), _LEAST_FALL * typical):
        yield Finding(
            "training",
            "the return has fallen again",
            f"{_RETURN}_mean",
            last,
            f"about {short(best)}, its best in the run",
            "The policies have become worse. The best checkpoint may be much better than the last.",
            "A learning_rate that falls (lin_ before it), target_kl=0.02, or an end by --stop; --checkpoint best.",
            _NUTS,
        )
    elif best - first < _LEAST_GAIN * typical:
        yield Finding(
            "training",
            _NOT_RISEN,
            f"{_RETURN}_mean",
            last,
            f"clearly above {short(first)}, where it starts",
            "It has gained less than a tenth of the difference between the best and the worst episodes.",
            "More env steps, another learning_rate, python -m marl_sb3.tune; python -m marl_sb3.doctor checks the env. "
            "Ignore this if the first policy is already as good as possible.",
        )


def _opposes(columns: Columns) -> bool:
    """Whether the agents' returns oppose each other: then the sum says little, and a side may lose."""
    agents = by_agent(columns, f"{_RETURN.replace('episode_return', 'agent_episode_returns')}_mean")
    opposition = Opposition(list(agents))
    for row in zip(*agents.values(), strict=True):
        opposition.add(dict(zip(agents, (None if np.isnan(value) else float(value) for value in row), strict=True)))
    return opposition.words(certain=False) is not None  # there are few iterations, and only hints depend on it


def _starvation(columns: Columns) -> Iterator[Finding]:
    """An agent hardly acts, or is paid the same whatever happens."""
    steps = {a: float(c[-1]) for a, c in by_agent(columns, "num_agent_steps_sampled_lifetime").items() if len(c)}
    for agent, own in steps.items():
        others = [value for other, value in steps.items() if other != agent]
        if others and own < _STARVED * (typical := float(np.mean(others))):
            yield Finding(
                f"agent {agent}",
                "it hardly acts",
                f"num_agent_steps_sampled_lifetime/{agent}",
                own,
                f"{short(typical)}, the mean of the others",
                "It gives its policy next to nothing to learn from.",
                "Look at when the env lets it act; a shared policy (--policies shared) learns from the others, too.",
            )
    yield from _unpaid(by_agent(columns, "env_runners/agent_episode_returns_mean"))


def _unpaid(returns: Mapping[AgentID, Column]) -> Iterator[Finding]:
    known = {agent: _known(column) for agent, column in returns.items()}
    same = {a for a, values in known.items() if len(values) >= LEAST_ITERATIONS and np.ptp(values) == 0.0}
    everybody = len(same) == len(known)  # said once
    for agent in sorted(same)[:1] if everybody else sorted(same):
        yield Finding(
            "all agents" if everybody else f"agent {agent}",
            "the return is always the same",
            f"env_runners/agent_episode_returns_mean/{agent}",
            float(known[agent][0]),
            "different numbers",
            "All tried actions had the same return, so that nothing could be learned from them.",
            "More exploration, or rewards on the way to a goal that is never reached; python -m marl_sb3.doctor looks "
            "at the rewards of all agents.",
        )


def _restarts(columns: Columns) -> Iterator[Finding]:
    """Processes that step envs had to be replaced."""
    if (count := _last(columns, "fault_tolerance/num_worker_restarts")) > 0:
        yield Finding(
            "training",
            "workers were replaced",
            "fault_tolerance/num_worker_restarts",
            count,
            "0",
            "Processes that step envs have ended or hung. The training went on with the same result, but slower.",
            "The log says why; python -m marl_sb3.doctor finds envs that crash or hang.",
        )


def _last(columns: Columns, name: str) -> float:
    values = _known(columns.get(name))
    return float(values[-1]) if len(values) else 0.0


_OF_TRAININGS = (_unended, _returns, _starvation, _restarts)
_OF_LEARNERS = (_kl, _clipping, _stillness, _values, _entropy, _explosions, _randomness)
