"""A page about one run or several, and their table in Markdown: settings, curves, tables, hints, videos, commands."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import yaml

from marl_sb3.core.config.values import EXTERNAL, counted
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.metrics.statistics import sample_stats
from marl_sb3.errors import CheckpointError, ConfigError, MarlSb3Error
from marl_sb3.extensions.display.page import Html, Page, note, prose, table, words
from marl_sb3.extensions.display.tables import Table
from marl_sb3.extensions.display.text import duration, markdown_text, number, short
from marl_sb3.extensions.store.checkpoint_format import read_manifest
from marl_sb3.files.regular import is_regular, read_regular
from marl_sb3.results.curves import Curve, Figure, Panel, draw_up
from marl_sb3.results.drawing import with_notes
from marl_sb3.results.health import LEAST_ITERATIONS, Column, Problem, by_agent, find_problems, hints, policies_in
from marl_sb3.results.reading import find_runs, read_run
from marl_sb3.results.records import AGENT_RETURNS, RETURN, STEPS, RunRecord, group_by_settings
from marl_sb3.runs.building import resolved
from marl_sb3.runs.files import to_yaml
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.settings import load_config
from marl_sb3.startup import require_extra

_EVALUATED = f"evaluation/{RETURN}"
_LENGTH = "env_runners/episode_len_mean"
_MATCH = "match.json"  # what `match --out RUN/match.json` has written
_VIDEOS = {".gif": "image/gif", ".mp4": "video/mp4"}
_MOST_BYTES = 30_000_000  # of a video that is put into the page
_MOST_RUNS, _MOST_LINES, _MOST_POLICIES = 500, 40, 16
_LEARNER = {
    "mean_kl_loss": "KL divergence",
    "clip_fraction": "clip fraction",
    "vf_explained_var": "explained variance",
    "entropy": "entropy",
    "gradients_global_norm": "gradient norm",
    "vf_loss": "value loss",
    "policy_loss": "policy loss",
    "qf_loss": "loss of Q values",
    "actor_loss": "actor loss",
    "critic_loss": "critic loss",
    "ent_coef": "entropy coefficient",
    "exploration_rate": "exploration rate",
    "curr_lr": "learning rate",
}
_NOT_COMPARED = ("seed", "n_parallel_updates", "extensions")  # differ in each run, or follow from the machine


@dataclass(frozen=True)
class RunData:
    """What a run folder says about its run."""

    folder: Path  # as the user has named it
    config: TrainConfig  # its configuration
    record: RunRecord  # what it has logged; of a damaged `result.jsonl`, what comes before the damage

    @cached_property
    def problems(self) -> list[Problem]:
        """What looks wrong in it."""
        return find_problems(self.record.columns, begins_trained=self.config.init_from is not None)

    def computed_by(self) -> dict[str, str]:
        """Say what chose the actions and computed the updates of each policy, as the newest checkpoint tells."""
        checkpoints = RunFolder(self.folder).checkpoints
        for name in reversed(checkpoints.names()):
            # It is damaged, or is of a version that did not tell it.
            with suppress(CheckpointError, RecursionError):
                paths = read_manifest(checkpoints.path / name).fields("about").fields("paths")
                return {policy: paths.string(policy) for policy in paths.names()}
        return {}

    @property
    def final_return(self) -> float | None:
        """The return of the latest evaluation, or without one, of the latest episodes of the training."""
        evaluated = self.record.last(_EVALUATED)
        return self.record.last(RETURN) if evaluated is None else evaluated


def read_runs(names: Sequence[str], env: str | None = None) -> tuple[list[RunData], list[str]]:
    """Read run folders, and those in folders of runs, of patterns and of envs' names.

    Of several, those without a valid configuration are left out.

    Args:
        names: see `find_runs`.
        env: what a run's env is, if it is one that a file must not name; see `RunFolder.read_config`.

    Returns:
        The runs, and a warning about each that is damaged or left out.

    Raises:
        ConfigError: there is none, there are too many, or none has a valid configuration.
    """
    found = {name: find_runs(name) for name in names}
    if empty := next((name for name, folders in found.items() if not folders), None):
        accepted = "run folders, folders of runs, or names of envs in runs/"
        raise ConfigError(f"{empty}: there is no run; accepted: {accepted}", key="run")
    folders = list(dict.fromkeys(folder for each in found.values() for folder in each))
    if len(folders) > _MOST_RUNS:
        raise ConfigError(f"{len(folders)} runs are found; accepted: up to {_MOST_RUNS}", key="run")
    runs: list[RunData] = []
    warnings: list[str] = []
    for folder in folders:
        try:
            runs.append(RunData(folder, RunFolder(folder).read_config(env, makes_env=False), read_run(folder)))
        except ConfigError as error:
            if len(folders) == 1:
                raise
            warnings.append(f"{folder} is left out: {error}")
    if not runs:
        raise ConfigError(warnings[0], key="run")
    return runs, [*warnings, *(run.record.warning for run in runs if run.record.warning)]


# --- The table in Markdown -------------------------------------------------------------------------------------------


_OF_SETUP = ("runs", "mean_reward", "std_reward", "n_timesteps", "eval_timesteps", "eval_episodes")


def markdown(runs: Sequence[RunData]) -> str:
    """Return a table of all runs by algorithm and env, with the columns of rl-baselines3-zoo's `benchmark.md`.

    `mean_reward` is the mean over runs of the return, of the latest evaluation if there is one; `std_reward` is the
    standard deviation over the runs. Below it stands what looks wrong in a run.
    """
    by_setup: dict[tuple[str, str, str], list[RunData]] = {}
    for run in runs:
        key = (run.config.algo, run.config.env, run.config.named_policies)
        by_setup.setdefault(key, []).append(run)
    rows = []
    for names, group in sorted(by_setup.items()):
        returns = sample_stats([run.final_return for run in group if run.final_return is not None])
        counts = (STEPS, "evaluation/env_runners/num_env_steps_sampled", "evaluation/env_runners/num_episodes")
        each = [_several(run.record.last(metric) for run in group) for metric in counts]
        rows.append([*names, str(len(group)), number(returns.mean), number(returns.sd), *each])
    lines = [Table(("algo", "env_id", "policies", *_OF_SETUP), rows, numbers_from=3).markdown().rstrip()]
    for run in filter(lambda run: run.problems, runs):
        folder = shlex.quote(run.folder.as_posix())
        items = hints(run.problems, f"python -m marl_sb3.report {folder}")
        lines += ["", f"{markdown_text(run.folder.as_posix())}:", "", *(f"- {markdown_text(item)}" for item in items)]
    return "\n".join(lines) + "\n"


def _several(values: Iterable[float | None]) -> str:
    """The number that all runs have, or the smallest and the largest one."""
    known = sorted({round(value) for value in values if value is not None})
    return "-" if not known else f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} to {known[-1]:,}"


# --- The page --------------------------------------------------------------------------------------------------------


def html_page(runs: Sequence[RunData]) -> Page:
    """Make the page of one run, or of several.

    Raises:
        ConfigError: plotly is not installed.
    """
    require_extra("a report", "report")
    return _page_of_one(runs[0]) if len(runs) == 1 else _page_of_several(runs)


def _page_of_one(run: RunData) -> Page:
    page = Page(f"{run.config.env}: {run.folder.name}")
    page.add("Summary", table(_summary(run)), *([warning(run.record.warning)] if run.record.warning else []))
    page.add("Hints", *_hints(run))
    page.add("Settings", *_settings(run.config))
    if len(run.record.steps):
        page.add("Curves", *(part for figure in _curves(run.record) for part in with_notes(page, figure, height=360)))
        page.add("Agents", table(*_agents(run)))
    if policies_in(run.record.columns):
        page.add(
            "Policies", table(*_policies(run)), note("After the weights: medians over the last quarter of the run.")
        )
        page.add("Learner health", *with_notes(page, _learner_curves(run.record), height=260))
    if is_regular(run.folder / _MATCH):
        _add_match(page, run.folder / _MATCH)
    files = sorted(path for path in run.folder.rglob("*") if path.suffix.lower() in _VIDEOS and is_regular(path))
    if files:
        page.add("Videos", *(part for path in files for part in _video(path, run.folder)))
    page.add("How to repeat it", *_repeat(run))
    return page


def _add_match(page: Page, path: Path) -> None:
    """Add the match that was written into the run folder, such as of its checkpoints against each other."""
    from marl_sb3.tools.viewing.match_page import sections  # these play games
    from marl_sb3.tools.viewing.matching import Match

    try:
        found = Match.from_json(read_regular(path))
    except ConfigError as error:
        page.add("Match", warning(f"{path.name} is {error}"))
        return
    for heading, parts in sections(page, found):
        page.add(f"Match: {heading}", *parts)


def _page_of_several(runs: Sequence[RunData]) -> Page:
    page = Page(f"{len(runs)} runs")
    rows = [
        [
            run.folder.as_posix(),
            run.config.env,
            run.config.algo,
            run.config.named_policies,
            run.config.seed,
            f"{run.record.last(STEPS) or 0:,.0f}",
            run.final_return,
            len(run.problems) or None,
            ", ".join(f"{name}={own}" for name, own, _ in _differences(run.config)[0]),
        ]
        for run in runs
    ]
    head = ["run", "env", "algorithm", "policies", "seed", "env steps", "return", "hints", "unlike the preset"]
    text = "The return is that of the latest evaluation, or without one, of the latest episodes of the training."
    page.add(
        "Runs", note(text), table(rows, head), *(warning(run.record.warning) for run in runs if run.record.warning)
    )
    for env in dict.fromkeys(run.config.env for run in runs):
        records = [run.record for run in runs if run.config.env == env and RETURN in run.record.metrics]
        if records:  # the mean of the runs that differ in their seeds alone
            groups = group_by_settings(records)
            several = replace(groups, runs=dict(list(groups.runs.items())[:_MOST_LINES]))
            page.add(f"Returns in {env}", *with_notes(page, draw_up(several, [RETURN])))
    cards = [
        part
        for run in runs
        if run.problems
        for part in (Html(f"<h3>{words(run.folder.as_posix())}</h3>"), *map(_card, run.problems))
    ]
    page.add("Hints", *(cards or [note("Nothing looks wrong.")]))
    return page


def _curves(run: RunRecord) -> Iterator[Figure]:
    """Returns of all agents together, of each, lengths of episodes, and the metrics of the env."""
    low, mean, high = (run.columns.get(f"env_runners/episode_return_{name}") for name in ("min", "mean", "max"))
    total = [] if mean is None else [Curve("training", "", run.steps, mean, low, high)]
    if (evaluated := run.columns.get(_EVALUATED)) is not None:
        is_known = np.isfinite(evaluated)
        total.append(Curve("evaluation", "", run.steps[is_known], evaluated[is_known]))
    band = "" if low is None or high is None else "The band is from the lowest to the highest episode."
    yield Figure([Panel(RETURN, "sum of returns", total)], "env steps", band)
    returns = by_agent(run.columns, AGENT_RETURNS)
    custom = by_agent(run.columns, "env_runners/custom_metrics")
    for title, columns in (
        ("return of an agent", returns if len(returns) > 1 else {}),
        ("env steps", {"episode length": run.columns[_LENGTH]} if _LENGTH in run.columns else {}),
        ("per episode", {name[:-5]: column for name, column in custom.items() if name.endswith("_mean")}),
    ):
        if columns:
            curves = [Curve(name, "", run.steps, column) for name, column in list(columns.items())[:_MOST_LINES]]
            yield Figure([Panel("", title, curves)], "env steps")


def _learner_curves(run: RunRecord) -> Figure:
    """A panel for each metric of learners, with a line for each policy."""
    policies = policies_in(run.columns)[:_MOST_POLICIES]
    panels = []
    for name, title in _LEARNER.items():
        columns = {policy: run.columns.get(f"learners/{policy}/{name}") for policy in policies}
        curves = [Curve(policy, "", run.steps, column) for policy, column in columns.items() if column is not None]
        panels += [Panel(name, title, curves)] if curves else []
    return Figure(panels, "env steps")


def warning(text: str) -> Html:
    """A paragraph that stands out."""
    return Html(f'<p class="warning">{prose(text)}</p>')


def _summary(run: RunData) -> list[tuple[str, object]]:
    config = run.config
    seconds = run.record.last("time_total_s")
    best = run.record.columns.get(RETURN, np.empty(0))
    rows: list[tuple[str, object]] = [
        ("env", config.env),
        ("algorithm, policies", f"{config.algo}, {config.named_policies}"),
        ("seed", config.seed),
        ("env steps", f"{run.record.last(STEPS) or 0:,.0f} of {config.n_timesteps:,}"),
        ("iterations, episodes", f"{len(run.record.steps):,}, {run.record.last('num_episodes_lifetime') or 0:,.0f}"),
        ("rollouts and updates", None if seconds is None else duration(seconds)),
        ("sum of returns", run.record.last(RETURN)),
        ("best in the training", float(np.nanmax(best)) if np.isfinite(best).any() else None),
        ("latest evaluation", run.record.last(_EVALUATED)),
        *((f"policy {policy}", path) for policy, path in list(run.computed_by().items())[:_MOST_POLICIES]),
        ("run folder", str(run.folder)),
    ]
    return [(name, value) for name, value in rows if value is not None]


def _hints(run: RunData) -> list[Html]:
    if run.problems:
        return [note("Reasons to look closer; none of them is a proof."), *map(_card, run.problems)]
    few = (
        f" {counted(len(run.record.steps), 'iteration')}: too few to judge."
        if len(run.record.steps) < LEAST_ITERATIONS
        else ""
    )
    return [note(f"Nothing looks wrong.{few}")]


def _card(problem: Problem) -> Html:
    seen = f"{problem.metric} is {short(problem.value)}; usual: {problem.usual}."
    source = f" ({problem.source})" if problem.source else ""
    return Html(
        f'<div class="hint"><strong>{words(problem.subject)}: {words(problem.title)}</strong>'
        f"<p>{words(seen)}</p><p>{prose(problem.meaning)}</p>"
        f"<p>Try: {prose(problem.remedy)}<small>{words(source)}</small></p></div>"
    )


def _settings(config: TrainConfig) -> list[Html]:
    """The settings that differ from those of the preset, and then all."""
    own, (rows, why_none) = table(_flat(config).items()), _differences(config)
    if why_none:
        return [note(f"There is no preset to compare with: {why_none}"), own]
    text = "These differ from the preset." if rows else "All settings are those of the preset."
    first = [note(text), table(rows, ["setting", "run", "preset"])] if rows else [note(text)]
    return [*first, Html(f"<details><summary>All settings</summary>{own}</details>")]


def _differences(config: TrainConfig) -> tuple[list[tuple[str, str | None, str | None]], str]:
    """The settings that differ from the preset: the name, the run's value, the preset's; and why there is no preset."""
    own = _flat(config)
    try:
        preset = _flat(resolved(load_config(config.env, config.algo)))
    except MarlSb3Error as error:  # such as of an algorithm of the user's own
        return [], str(error)
    names = [name for name in {**own, **preset} if name not in _NOT_COMPARED and own.get(name) != preset.get(name)]
    return [(name, own.get(name), preset.get(name)) for name in names], ""


def _flat(config: TrainConfig) -> dict[str, str]:
    """Settings by the names that `--set` takes; those that are not set are left out."""
    plain = next(iter(yaml.safe_load(to_yaml(config)).values()))
    sections = {"hyperparameters": "", "env_kwargs": "env.", "policy_settings": ""}
    found: dict[str, str] = {}
    for name, value in plain.items():
        inner = flatten(value) if isinstance(value, Mapping) and value else {"": value}
        for key, each in inner.items():
            path = f"{sections.get(name, f'{name}.')}{key.replace('/', '.')}" if key else name
            if each not in (None, {}, []):
                found[path] = str(each)
    return found


def _agents(run: RunData) -> tuple[list[list[object]], list[str]]:
    steps = by_agent(run.record.columns, "num_agent_steps_sampled_lifetime")
    rows = list[list[object]]()
    for agent, column in by_agent(run.record.columns, AGENT_RETURNS).items():
        known = column[np.isfinite(column)]
        ends = [known[0], known.max(), known[-1]] if len(known) else [None] * 3
        acted = f"{steps[agent][-1]:,.0f}" if agent in steps else None
        rows.append([agent, _policy_of(run, agent), *(None if end is None else float(end) for end in ends), acted])
    return rows, ["agent", "policy", "first return", "best", "latest", "actions"]


def _policy_of(run: RunData, agent: str) -> str | None:
    policies = list(by_agent(run.record.columns, "env_runners/module_episode_returns_mean"))
    if len(policies) == 1:
        return policies[0]
    listed = {each: policy_id for policy_id in policies for each in run.config.agents.get(policy_id, ())}
    if isinstance(run.config.mapping, Mapping) and agent in run.config.mapping:
        played = run.config.mapping[agent]
        return played if isinstance(played, str) else ", ".join(played)
    return listed.get(agent, agent if agent in policies else None)


_OF_LEARNERS = ("mean_kl_loss", "clip_fraction", "vf_explained_var", "entropy", "gradients_global_norm", "curr_lr")


def _policies(run: RunData) -> tuple[list[list[object]], list[str]]:
    shown = [
        name
        for name in _OF_LEARNERS
        if any(f"learners/{p}/{name}" in run.record.columns for p in policies_in(run.record.columns))
    ]
    rows = list[list[object]]()
    for policy_id in policies_in(run.record.columns):
        at = f"learners/{policy_id}"
        counts = [run.record.last(f"{at}/{name}") for name in ("num_grad_updates_lifetime", "num_trainable_parameters")]
        rows.append(
            [
                policy_id,
                run.config.of_policy(policy_id).algo,
                run.record.last(f"env_runners/module_episode_returns_mean/{policy_id}"),
                *(None if count is None else f"{count:,.0f}" for count in counts),
                *(_late(run.record.columns.get(f"{at}/{name}")) for name in shown),
            ]
        )
    return rows, ["policy", "algorithm", "return", "updates", "weights", *(_LEARNER[name] for name in shown)]


def _late(column: Column | None) -> float | None:
    known = np.empty(0) if column is None else column[np.isfinite(column)]
    return float(np.median(known[-max(1, len(known) // 4) :])) if len(known) else None


def _video(path: Path, folder: Path) -> list[Html]:
    name = path.relative_to(folder).as_posix()
    if path.stat().st_size > _MOST_BYTES:
        return [note(f"{name} is too large for this page ({path.stat().st_size / 1e6:.0f} MB).")]
    kind = _VIDEOS[path.suffix.lower()]
    data = f"data:{kind};base64,{base64.b64encode(read_regular(path)).decode()}"
    is_image = kind.startswith("image/")
    tag = f'<img src="{data}" alt="{words(name)}">' if is_image else f'<video src="{data}" controls loop></video>'
    return [Html(f"<figure>{tag}<figcaption>{words(name)}</figcaption></figure>")]


def _repeat(run: RunData) -> list[Html]:
    folder = shlex.quote(str(run.folder))
    env = f"{shlex.quote(run.config.env)} " if ":" in run.config.env else ""  # no env is imported that a file names
    named = f" --env {shlex.quote(run.config.env)}" if env else ""
    lines = {
        "the same run again, bit for bit on the same machine": f"train {env}--hparams {folder}/config.yaml",
        "another seed": f"train {env}--hparams {folder}/config.yaml --seed {(run.config.seed or 0) + 1}",
        "train on": f"train --resume {folder}{named} --timesteps {2 * run.config.n_timesteps}",
    }
    if run.config.env == EXTERNAL:
        lines["let the policies act"] = f"serve {folder}"
    else:
        lines["how good the policies are"] = f"evaluate {folder}{named} --episodes 100"
        lines["see them"] = f"watch {folder}{named}"
    return [table([(what, f"python -m marl_sb3.{line}") for what, line in lines.items()])]
