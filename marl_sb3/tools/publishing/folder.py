"""Write a run folder for others and for the Hub: one checkpoint of a run, and a card with its measured returns.

All commands that take a run take it. What only its training needs is left out: logs, replay buffers, other checkpoints.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from marl_sb3.core.config.values import EXTERNAL
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.metrics.statistics import SampleStats
from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import ConfigError, EnvError
from marl_sb3.evaluation.opponents import RANDOM
from marl_sb3.evaluation.played import Played
from marl_sb3.evaluation.playing import EvaluationPlan, play
from marl_sb3.extensions.display.tables import Table
from marl_sb3.extensions.display.text import between, markdown_text, number
from marl_sb3.extensions.display.video import VideoFile
from marl_sb3.extensions.hub import Address
from marl_sb3.extensions.store.checkpoint_folder import RUN_CONFIG, with_checkpoint
from marl_sb3.extensions.store.checkpoint_format import write_checkpoint
from marl_sb3.files.atomic import replaced_folder, write_whole
from marl_sb3.files.paths import path_is_usable
from marl_sb3.files.plain_yaml import yaml_text
from marl_sb3.files.regular import read_regular
from marl_sb3.results.result_log import RESULT_FILE, read_results
from marl_sb3.runs.building import make_envs
from marl_sb3.runs.evaluate import SUM, EvaluatedRun, evaluate_run, samples_of
from marl_sb3.runs.run import SavedRun
from marl_sb3.runs.schema import TrainConfig

_log = logging.getLogger(__name__)

CARD = "README.md"
_NAME = re.compile(r"ckpt-[0-9]{6,12}")


def write_run_folder(
    run: SavedRun,
    checkpoint: str | None,
    out: Path,
    env: str | None = None,
    *,
    address: Address | None = None,
    episodes: int = 20,
    references: Mapping[str, float] | None = None,
    force: bool = False,
) -> Checkpoint:
    """Write the folder: `config.yaml`, `result.jsonl`, the checkpoint, `README.md`, and a film if the env draws itself.

    Args:
        run: whose checkpoint it is.
        checkpoint: which; see `CheckpointFolder.load`.
        out: new or empty folder; or one that this has written, with `force`.
        env: the run's env, as the user names it.
        address: of the run on the Hub, for the card; None: it stays a folder.
        episodes: complete ones, played for the card and filmed; 0: none, the card has what the training logged.
        references: other sums of returns for the card by name, from elsewhere.

    Returns:
        The checkpoint.

    Raises:
        ConfigError: there is something else, the checkpoint is a member of a league, or the env cannot be made.
        CheckpointError: there is no such checkpoint, or it is damaged.
        EnvError: the env broke the `ParallelEnv` contract.
    """
    with ExitStack() as cleanup:
        with path_is_usable("--out: cannot write to", out, "out"):
            there = {each.name for each in out.iterdir()} if out.is_dir() else set()
            if there and not force:
                raise ConfigError(f"{out} exists already; --force replaces it", key="out")
            if (there or out.exists()) and not {RUN_CONFIG, CARD} <= there and (there or not out.is_dir()):
                words = f"--out: {out} is something else"
                raise ConfigError(f"{words}; accepted: a new folder, or one of an export", key="out")
            fresh = cleanup.enter_context(replaced_folder(out))
        found = with_checkpoint(lambda: run.find(checkpoint), lambda found: _copied(found, fresh))
        write_whole(fresh / RUN_CONFIG, read_regular(run.files.config_file))
        iteration = found.about.integer("iteration")
        results = [each for each in read_results(run.files.path) if each["iteration"] <= iteration]
        lines = "".join(f"{json.dumps(each, allow_nan=False)}\n" for each in results)
        write_whole(fresh / RESULT_FILE, lines)
        written = SavedRun.open(fresh, env, makes_env=episodes > 0)
        measured = _measured(written, episodes, fresh) or Measured.of_training(flatten(results[-1]) if results else {})
        write_whole(fresh / CARD, cardmarkdown_text(written.config, found, measured, address, references or {}))
    return found


def _copied(found: Checkpoint, folder: Path) -> Checkpoint:
    """Write a checkpoint anew without its replay buffers; its files have been verified."""
    if not _NAME.fullmatch(found.name):
        words = f"{found.folder} is a member of a league"
        raise ConfigError(f"{words}; accepted: a run, or a checkpoint in `checkpoints/`", key="run")
    tensors = {name: group.load() for name, group in found.tensors.items() if not name.startswith("replay-")}
    write_checkpoint(folder / "checkpoints" / found.name, found.state, tensors, found.about.values())
    return found


# --- What it is worth ------------------------------------------------------------------------------------------------


def _measured(run: SavedRun, episodes: int, folder: Path) -> Measured | None:
    """Let the policies and random agents play the same episodes; None if none are to be played.

    Where the agents' returns oppose each other, the policies play against random agents, on each side.
    """
    if not episodes or run.config.env == EXTERNAL:
        return None
    plan = EvaluationPlan.of_run(run.config, episodes, film_episodes=1)
    if run.files.checkpoints.opposed() is not None:
        plan = replace(plan, against=RANDOM)
    played, film = _filmed(run, plan, folder)
    if plan.against is not None:
        return Measured.of(played, None, film)
    with closing(make_envs(run.config, n_envs=plan.n_envs, seed=plan.seed)) as env:
        at_random = play(run.policies(None, env), env, plan.n_episodes, seed=plan.seed, acting=())
    return Measured.of(played, at_random, film)


def _filmed(run: SavedRun, plan: EvaluationPlan, folder: Path) -> tuple[EvaluatedRun, str | None]:
    """Evaluate a run; if its env draws itself, with a film of the first episode."""
    name = "replay.mp4" if find_spec("imageio_ffmpeg") else "replay.gif"
    try:
        with VideoFile(folder / name) as video:
            return evaluate_run(run, plan, video=video), name
    except (ConfigError, EnvError) as error:
        _log.info("no film: %s", error)
    return evaluate_run(run, replace(plan, film_episodes=0)), None


# --- The card ---------------------------------------------------------------------------------------------------------


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
    def of(cls, played: EvaluatedRun, at_random: Played | None, film: str | None) -> Measured:
        """Compare the policies with random agents: against them by side, or with their episodes, `at_random`."""
        ours = dict(samples_of(played.played, most_agents=_MOST_AGENTS))
        how, plan = f"{played.plan.in_words()}.", played.plan
        if at_random is None:
            rows = [(name, stats, None) for name, stats in ours.items()]
            return cls(rows, f"Against random agents, each side {how}", plan, film)
        theirs = dict(samples_of({(): at_random}, most_agents=_MOST_AGENTS))
        names = [SUM, *(name for name in ours if name != SUM)] if len(at_random.agents) > 1 else [SUM, "episode length"]
        return cls([(name, ours[name], theirs[name]) for name in names], how, plan, film)

    @classmethod
    def of_training(cls, metrics: Mapping[str, Any]) -> Measured:
        """What the training has logged with the checkpoint: means without intervals; nothing if it has no log."""
        names = {"env_runners/episode_return_mean": SUM, "env_runners/episode_len_mean": "episode length"}
        found = {name: metrics[key] for key, name in names.items() if metrics.get(key) is not None}
        rows = [(name, SampleStats(0, value, None, None, None, None), None) for name, value in found.items()]
        return cls(rows, "The latest episodes of the training, in which policies explore; none were played apart.")


def cardmarkdown_text(
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
    parts = [
        f"---\n{meta}---\n\n# {markdown_text(title)}\n",
        _origin(config, found),
        *_film(measured.film, address),
        f"## Results\n\n{measured.how} Intervals are of the mean, 95 %.\n\n{_table(measured, references)}",
        _use(config, measured, address),
        f"## Made with\n\n{Table(['package', 'version'], [*versions]).markdown()}",
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
    env, algo, agents = map(markdown_text, (config.env + given, config.algo, agents))
    return (
        f"Policies of {env}, trained with marl_sb3 and Stable-Baselines3 by {algo}: {steps:,} env steps, "
        f"seed {config.seed}; checkpoint {found.name}. The policy of each agent: {agents}. "
        "Weights are safetensors, all else is JSON and YAML; no file is a pickle.\n"
    )


def _table(measured: Measured, references: Mapping[str, float]) -> str:
    has_random = any(theirs is not None for _, _, theirs in measured.rows)
    head = ["", "mean", "interval", "SD", *(["random agents", "interval"] if has_random else [])]
    rows = []
    for name, ours, theirs in measured.rows:
        random = [number(theirs.mean), between(theirs.ci95)] if theirs is not None else []
        rows.append([name, number(ours.mean), between(ours.ci95), number(ours.sd), *random])
    rest = ["-"] * (len(head) - 2)
    rows += [[f"reference, {SUM}: {name}", number(value), *rest] for name, value in references.items()]
    return Table(head, rows).markdown()


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
