"""The model card of a run: `README.md` with the metadata that the Hub reads, as its documentation describes them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_sb3.core.config.values import counted
from marl_sb3.core.metrics.statistics import SampleStats, sample_stats
from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.core.state.state import StateReader
from marl_sb3.evaluation.playing import Evaluation, EvaluationPlan, SeatEvaluations
from marl_sb3.extensions.display.text import between, number, one_line
from marl_sb3.extensions.hub import Address
from marl_sb3.files.plain_yaml import yaml_text
from marl_sb3.runs.evaluate import SUM, EvaluatedRun, samples_of, samples_of_seats
from marl_sb3.runs.schema import TrainConfig

_MOST_AGENTS = 20  # rows of the table
_WON = "won"


@dataclass(frozen=True)
class Measured:
    """What the policies of a run reach, as rows of a table."""

    rows: Sequence[tuple[str, SampleStats, SampleStats | None]]  # a name, of the policies, of random agents
    how: str  # one sentence
    plan: EvaluationPlan | None = None  # of the episodes; None: they were those of the training
    film: str | None = None  # name of the file

    @classmethod
    def of_episodes(cls, played: EvaluatedRun, at_random: Evaluation, film: str | None) -> Measured:
        """Compare the policies with random agents in the same envs."""
        assert isinstance(played.evaluation, Evaluation)
        agents = list(played.evaluation.metrics["agent_episode_returns_mean"])[:_MOST_AGENTS]
        ours, theirs = (dict(samples_of(each, agents, ())) for each in (played.evaluation, at_random))
        names = [SUM, *(name for name in ours if name != SUM)] if len(agents) > 1 else [SUM, "episode length"]
        rows = [(name, _stats(ours[name]), _stats(theirs[name])) for name in names]
        return cls(rows, _how(played.plan), played.plan, film)

    @classmethod
    def of_seats(cls, played: EvaluatedRun, film: str | None) -> Measured:
        """Of a game in which one wins what others lose: by side, against random agents."""
        assert isinstance(played.evaluation, SeatEvaluations)
        rows = [(name, _stats(values), None) for name, values in samples_of_seats(played.evaluation)]
        return cls(rows, f"Against random agents, each side {_how(played.plan)}", played.plan, film)

    @classmethod
    def of_training(cls, metrics: Mapping[str, Any]) -> Measured:
        """What the training has logged with the checkpoint: means without intervals; nothing if it has no log."""
        names = {"env_runners/episode_return_mean": SUM, "env_runners/episode_len_mean": "episode length"}
        found = {name: metrics[key] for key, name in names.items() if metrics.get(key) is not None}
        rows = [(name, SampleStats(0, value, None, None, None, None), None) for name, value in found.items()]
        return cls(rows, "The latest episodes of the training, in which policies explore; none were played apart.")


def _stats(values: SampleStats | Sequence[float]) -> SampleStats:
    return values if isinstance(values, SampleStats) else sample_stats(values)


def _how(plan: EvaluationPlan) -> str:
    actions = {True: "the most likely actions", False: "sampled actions"}
    is_one = isinstance(plan.deterministic, bool)  # else it is by policy
    which = actions[bool(plan.deterministic)] if is_one else "sampled actions of some policies"
    return f"{counted(plan.n_episodes, 'episode')} in {counted(plan.n_envs, 'env')}, {which}, seed {plan.seed}."


def card_text(
    config: TrainConfig, found: Checkpoint, measured: Measured, address: Address | None, references: Mapping[str, float]
) -> str:
    """Return the text of the card.

    Args:
        config: of the run.
        found: the checkpoint.
        measured: what it reaches.
        address: where the run will be; None: the text names a folder.
        references: other sums of returns, by name.
    """
    title = address.repo if address else f"{config.env}, {config.algo}"
    meta = yaml_text(_metadata(config, measured, title))
    versions = found.about.fields("versions").values().items()
    rows = "".join(f"| {_text(name)} | {_text(version)} |\n" for name, version in versions)
    parts = [
        f"---\n{meta}---\n\n# {_text(title)}\n",
        _origin(config, found),
        *_film(measured.film, address),
        f"## Results\n\n{measured.how} Intervals are of the mean, 95 %.\n\n{_table(measured, references)}",
        _use(config, measured, address),
        f"## Made with\n\n| package | version |\n| --- | --- |\n{rows}",
    ]
    return "\n".join(f"{part.rstrip()}\n" for part in parts)


def _film(name: str | None, address: Address | None) -> list[str]:
    """A film on the page; the Hub resolves places of pictures, not of films."""
    if name is None or name.endswith(".gif"):
        return [] if name is None else [f"![An episode]({name})"]
    branch = address and (address.revision or "main")
    place = f"https://huggingface.co/{address.repo}/resolve/{branch}/{name}" if address else name
    return [f'<video src="{place}" controls autoplay loop muted></video>']


def _metadata(config: TrainConfig, measured: Measured, title: str) -> dict[str, Any]:
    """The metadata: https://huggingface.co/docs/hub/model-cards#model-card-metadata."""
    plan = measured.plan
    metrics = []
    for name, stats, _ in measured.rows:
        kind = "win_rate" if name.endswith(f": {_WON}") else "mean_reward" if "return" in name else None
        if kind is not None and stats.mean is not None:
            args: dict[str, float] = {} if plan is None else {"n_episodes": plan.n_episodes, "seed": plan.seed}
            if stats.ci95 is not None:
                args |= {end: round(bound, 4) for end, bound in zip(("ci95_low", "ci95_high"), stats.ci95, strict=True)}
            value = {"type": kind, "value": round(stats.mean, 4), "name": name}
            metrics.append({**value, "args": args} if args else value)
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    dataset = {"type": config.env, "name": config.env}
    results = [{"task": task, "dataset": dataset, "metrics": metrics}] if metrics else []
    return {
        "library_name": "marl_sb3",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "multi-agent", "stable-baselines3", config.algo, config.env],
        "model-index": [{"name": title, "results": results}],
    }


def _origin(config: TrainConfig, found: Checkpoint) -> str:
    policy_of: Mapping[str, str] = StateReader(found.state).fields("policy_of").values()
    agents = ", ".join(f"{agent}: {policy}" for agent, policy in list(policy_of.items())[:_MOST_AGENTS])
    given = "".join(f", {name} = {value!r}" for name, value in config.env_kwargs.items())
    steps = found.about.integer("num_env_steps")
    return (
        f"Policies of {_text(config.env)}{_text(given)}, trained with marl_sb3 and Stable-Baselines3 by "
        f"{_text(config.algo)}: {steps:,} env steps, seed {config.seed}; checkpoint {found.name}. The policy of each "
        f"agent: {_text(agents)}. Weights are safetensors, all else is JSON and YAML; no file is a pickle.\n"
    )


def _table(measured: Measured, references: Mapping[str, float]) -> str:
    has_random = any(theirs is not None for _, _, theirs in measured.rows)
    head = ["", "mean", "interval", "SD", *(["random agents", "interval"] if has_random else [])]
    lines = [head, ["---"] * len(head)]
    for name, ours, theirs in measured.rows:
        random = [number(theirs.mean), between(theirs.ci95)] if theirs is not None else []
        lines.append([_text(name), number(ours.mean), between(ours.ci95), number(ours.sd), *random])
    rest = ["-"] * (len(head) - 2)
    lines += [[_text(f"reference, {SUM}: {name}"), number(value), *rest] for name, value in references.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _use(config: TrainConfig, measured: Measured, address: Address | None) -> str:
    plan, is_own, place = measured.plan, ":" in config.env, str(address or "FOLDER")
    env = f" --env {shlex.quote(config.env)}" if is_own else ""
    played = f" --episodes {plan.n_episodes} --seed {plan.seed}" if plan else ""
    against = " --against random" if plan is not None and plan.against is not None else ""
    settings, file = "", "FOLDER/config.yaml"
    if address is not None:
        of_branch = f" --revision {address.revision}" if address.revision else ""
        settings, file = f"hf download {address.repo} config.yaml --local-dir .{of_branch}\n", "config.yaml"
    named = f" {shlex.quote(config.env)}" if is_own else ""
    deterministic = plan is None or plan.deterministic is True  # as the episodes of the table were played
    return f"""## Use

```bash
python -m marl_sb3.evaluate {place}{played}{against}{env}
python -m marl_sb3.watch {place}{env}
```

```python
import marl_sb3

policies = marl_sb3.load_policies("{place}")
actions = policies.predict(observations, deterministic={deterministic})  # {{agent: observation}} -> {{agent: action}}
```

## Repeat the training

```bash
{settings}python -m marl_sb3.train{named} --hparams {file}
```
"""


def _text(text: object) -> str:
    """Text of a file on one line, in which nothing is Markdown or HTML."""
    escaped = one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{c}" if c in "|`*[]\\" else c for c in escaped)
