"""Write the pages of the reference that follow from the code: `python docs/generate.py`.

The commands come from the parameters of their functions, the settings from `TrainConfig`, the checks from their
registry, RLlib's names from the table of their translation, the algorithms from their registry. A test compares the
pages.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from algorithm_pages import algorithm_pages
from measured import in_page, read

from marl_sb3.cli import COMMANDS, documented
from marl_sb3.extensions.dialects.table import COUNTERPARTS, LATER, NAMES, NETWORK, PAGE, PARTS, in_yaml
from marl_sb3.extensions.fast import speed
from marl_sb3.extensions.fast.builtin import ALGORITHMS
from marl_sb3.runs.schema import SECTIONS, TrainConfig
from marl_sb3.tools.examining.checks import CHECKS
from marl_sb3.tools.examining.finding import Severity

HERE = Path(__file__).parent


def commands_page() -> str:
    """All commands with their options."""
    intro = (
        "# Commands\n\n"
        "`python -m marl_sb3.NAME --help` prints what this page shows, and `--version` the version. "
        "[The run\nfolder](run_folder.md#exit-codes) lists the exit codes.\n"
    )
    return intro + "".join(_command(name) for name in command_names())


def command_names() -> list[str]:
    """The modules that can be run, in the order in which one needs them."""
    found = {*COMMANDS, "__main__"}
    usual = [
        name
        for name in ("train", "evaluate", "watch", "report", "export", "imitate", "serve", "tune", "doctor")
        if name in found
    ]
    return usual + sorted(found.difference(usual))


def _command(name: str) -> str:
    module = importlib.import_module(f"marl_sb3.{name}")
    parser: argparse.ArgumentParser = module.build_parser() if name == "__main__" else module.main.parser()
    usual = (argparse._HelpAction, argparse._VersionAction)
    actions = [action for action in parser._actions if not isinstance(action, usual)]
    rows = [_row(action) for action in sorted(actions, key=lambda action: bool(action.option_strings))]
    table = "\n".join(["| option | what |", "| --- | --- |", *rows])
    title = "Overview" if name == "__main__" else name
    text = f"\n## {title}\n\n{parser.description}\n\n{table}\n"
    return text + (f"\n```text\n{parser.epilog.strip()}\n```\n" if parser.epilog else "")


def _row(action: argparse.Action) -> str:
    value = action.metavar or ("" if action.nargs == 0 else "|".join(map(str, action.choices or ())))
    names = action.option_strings or [str(action.metavar or action.dest)]
    shown = f"{', '.join(names)} {value if action.option_strings else ''}".strip()
    return f"| `{_in_cell(shown)}` | {_in_cell(str(action.help or '') % {'default': action.default})} |"


def settings_page() -> str:
    """All fields of a configuration, with their defaults."""
    rows = [
        f"| `{name}` | {_default(item)} | {_in_cell(meaning)} |"
        for name, item, meaning in _documented_settings(TrainConfig)
        if item.compare and name not in ("env", "hyperparameters")  # others are not part of the configuration
    ]
    intro = (
        "# Settings\n\n"
        "A settings file has these for each env, beside the hyperparameters of the algorithm by SB3's names.\n"
        "`--set KEY=VALUE` changes one; see [change settings](../how_to/settings.md). `env.NAME` in `--set` is an\n"
        "entry of `env_kwargs`. A name with a dot is in a section: `checkpoints: {every: 5}` in a file,\n"
        "`--set checkpoints.every=5`; the flat names `checkpoint_every` and `evaluation_interval` mean\n"
        "the same.\n\n"
    )
    return intro + "\n".join(["| setting | default | what |", "| --- | --- | --- |", *rows]) + "\n"


def _documented_settings(section: type, prefix: str = "") -> Iterator[tuple[str, Field[Any], str]]:
    """Each setting by its name, with its entry in the docstring of its section."""
    entries = documented(section)
    for item in fields(section):
        if item.name in SECTIONS:
            yield from _documented_settings(SECTIONS[item.name], f"{item.name}.")
        else:
            yield f"{prefix}{item.name}", item, entries[item.name]


def _default(item: Field[Any]) -> str:
    value = item.default_factory() if item.default_factory is not MISSING else item.default
    if value is None or value == {}:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def checks_page() -> str:
    """All checks of `doctor`, the worst first."""
    order = list(Severity)
    checks = sorted(CHECKS, key=lambda check: order.index(check.severity))
    rows = [
        f"| `{check.id}` | {check.severity} | {' | '.join(map(_in_cell, (check.title, check.why, check.remedy)))} |"
        for check in checks
    ]
    intro = (
        "# Checks of doctor\n\n"
        "All mistakes that `python -m marl_sb3.doctor` looks for, see [examine an env](../how_to/doctor.md). A test\n"
        "puts each of them into a small env, and requires that this one alone is found.\n\n"
    )
    header = ["| check | severity | what is wrong | why it matters | what to do |", "| --- | --- | --- | --- | --- |"]
    return intro + "\n".join([*header, *rows]) + "\n"


def rllib_page() -> str:
    """RLlib's names of settings, and what they mean here."""
    rows: dict[str, list[str]] = {"dependent": [], "envs": [], "network": [], "renamed": [], "always": []}
    by_what: dict[str, dict[str, list[str]]] = {"metric": {}, **{of: {} for of in COUNTERPARTS}, "setting": {}}
    for name, means in NAMES.items():
        first = means[0]
        if name in NETWORK:
            note = first.note or f"`{first.argument}`"
            rows["network"].append(_meaning(name, first.setting, first.algorithms, note))
        elif name in LATER and not first.part:
            rows["dependent"] += [_meaning(name, each.setting, each.algorithms, each.note) for each in means]
        elif first.setting and not first.part:
            rows["renamed"].append(_meaning(name, first.setting, _algorithms_with(first.setting), first.note))
        elif first.unset:
            values = " or ".join(dict.fromkeys(f"`{in_yaml(each)}`" for each in first.unset))
            rows["always"].append(f"| `{name}` | {values} | {_in_cell(first.why)} |")
        elif not first.part:
            by_what["setting"].setdefault(first.why, []).append(name)
    for names in (PARTS["runners"], PARTS["envs of a runner"]):
        rows["envs"].append(_meaning(", ".join(names), "n_envs", "all", NAMES[names[0]][0].note))
    for of, instead_of in COUNTERPARTS.items():
        for name, instead in instead_of.items():
            said, _, page = instead.partition("; see ")
            if page == PAGE or of == "metric":
                said = said.removeprefix("it is ").removesuffix(" here").replace("no metric here: ", "none: ")
                by_what[of].setdefault(said, []).append(name)
    tables = {
        f"of_{of}": "\n".join(
            f"| {_in_cell(said)} | {', '.join(map(_code, names))} |" for said, names in said_of.items()
        )
        for of, said_of in by_what.items()
    }
    meanings = [*rows["dependent"], *rows["envs"], *rows["network"], *rows["renamed"]]
    return _RLLIB.format(meanings="\n".join(meanings), always="\n".join(rows["always"]), **tables)


def _meaning(names: str, settings: str, algorithms: str, note: str) -> str:
    cells = [", ".join(map(_code, text.split(", "))) for text in (names, settings)]
    return f"| {' | '.join((*cells, algorithms, _in_cell(note)))} |"


def _algorithms_with(setting: str) -> str:
    """The algorithms that have a hyperparameter; all for settings of other kinds."""
    having = [info.class_name for info in ALGORITHMS.values() if setting in info.kinds]
    return ", ".join(having) if 0 < len(having) < len(ALGORITHMS) else "all"


def _code(name: str) -> str:
    return f"`{name}`"


_RLLIB = """# RLlib's names

[Coming from RLlib](../coming_from/rllib.md) shows how to do what RLlib's documents do; this page lists the names.

Settings files, `--set`, search spaces and `MultiAgentAlgorithm` accept the names of RLlib's `AlgorithmConfig`: those
of PPO, APPO, IMPALA, DQN and SAC in RLlib 2.60, what CQL, MARWIL and IQL have besides, and those
of older versions that its tuned examples of these have. Names without a counterpart are errors that say why.
The entries of `model`, `model_config` and `replay_buffer_config` are read as if they stood alone. `gamma`, `seed`,
`tau`, `target_entropy`, `clip_rewards` (a number, or false), `policies_to_train`, `evaluation_interval`,
`evaluation_duration` and `evaluation_duration_unit` have the same name here. A name may stand before a policy's
settings, too:
`--set pol1.lr=1e-4`. If a file and `--set` give the same setting, each by a name of its own, `--set`
wins; one of them cannot give a setting by two names.

## What they mean

| in RLlib | here | algorithms | value |
| --- | --- | --- | --- |
{meanings}

## Values that change nothing

These values are accepted and change nothing. All others are errors.

| in RLlib | accepted | why there is nothing else |
| --- | --- | --- |
{always}

## What has no counterpart

| why, and what to do instead | in RLlib |
| --- | --- |
{of_setting}

## Algorithms

`--algo` and `PolicySpec` refuse these names, and say what to do instead. `R2D2` is `recurrent_dqn`.

| what to do instead | in RLlib |
| --- | --- |
{of_algo}

## Metrics

`--stop`, `checkpoints.metric`, `tune --objective`, `StopOnMetric` and `compare --metric` refuse these names of results,
and say what they are here. A name that ends with `/` stands for all that begin with it. In `learners/`, RLlib's ids of
modules are those of policies. Names that begin with `rollout/`, `time/` and `eval/` are SB3's.

| here | in RLlib and SB3 |
| --- | --- |
{of_metric}

## Attributes of an algorithm

A `MultiAgentAlgorithm`, and a `Run` of `marl_sb3.train`, have an error for these names of RLlib's `Algorithm`.

| here | in RLlib |
| --- | --- |
{of_algorithm}

What `marl_sb3.load_policies` returns has an error for these:

| here | in RLlib |
| --- | --- |
{of_bundle}

A `MultiAgentVecEnv` has an error for these names of RLlib's vector envs and groups of workers:

| here | in RLlib |
| --- | --- |
{of_env}

## Attributes of a policy

`algo.policies[POLICY_ID]` is an algorithm of SB3. Those that `marl_sb3` exports, such as `marl_sb3.PPO`, have an error
for these names of RLlib's `Policy` and `RLModule`.

| here | in RLlib |
| --- | --- |
{of_policy}

## Attributes of an episode

A `RunningEpisode`, which hooks of callbacks get, has an error for these names.

| here | in RLlib |
| --- | --- |
{of_episode}

## Hooks of callbacks

A callback with one of these methods is refused before the training. So is one with a hook whose parameters are RLlib's:
hooks have those of [the list](../how_to/callbacks.md).

| here | in RLlib and Tune |
| --- | --- |
{of_callback}

| what parameters of RLlib's hooks are here | in RLlib |
| --- | --- |
{of_parameter}

## Searches of Tune

`marl_sb3.tune` refuses these names of arguments of `tune.run`, `Tuner`, `TuneConfig` and `RunConfig`.

| here | in Tune |
| --- | --- |
{of_search}

What `marl_sb3.tune` returns, a `TuneStudy`, has an error for these names of `ResultGrid` and `ExperimentAnalysis`.

| here | in Tune |
| --- | --- |
{of_study}
"""

PAGES = {
    "checks.md": checks_page,
    "commands.md": commands_page,
    "rllib_names.md": rllib_page,
    "settings.md": settings_page,
}


def speed_page(text: str) -> str:
    """The text of the page on speed with the tables of all reasons why compiled code is not used."""
    for name, reasons in (("policies", speed.OF_POLICIES), ("rollouts", speed.OF_ROLLOUTS)):
        rows = [f"| {words.replace('{}', '...')} | {_in_cell(remedy)} |" for words, remedy in reasons.items()]
        table = "\n".join(["| reason | faster with |", "| --- | --- |", *rows])
        marks = f"<!-- reasons of {name} -->\n", f"\n<!-- end of the reasons of {name} -->"
        before, _, rest = text.partition(marks[0])
        text = before + marks[0] + table + marks[1] + rest.partition(marks[1])[2]
    return text


def all_pages() -> dict[str, str]:
    """All generated pages, by their file names below `docs/`, and those in which figures are measured."""
    texts = {page: (HERE.parent / page).read_text(encoding="utf-8") for page in read()["pages"]}
    measured = {f"../{page}": in_page(page, text) for page, text in texts.items()}
    measured["how_to/speed.md"] = speed_page((HERE / "how_to/speed.md").read_text(encoding="utf-8"))
    return {**measured, **{f"reference/{name}": page() for name, page in PAGES.items()}, **algorithm_pages()}


if __name__ == "__main__":
    for name, text in all_pages().items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_text(text, encoding="utf-8")
