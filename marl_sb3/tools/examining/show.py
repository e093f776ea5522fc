"""Print a report for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from marl_sb3.core.config.values import counted
from marl_sb3.extensions.display.text import number, one_line
from marl_sb3.output import printable
from marl_sb3.tools.examining.finding import Finding, Report, Severity

_STYLES = {Severity.FAULT: "bold red", Severity.WARNING: "bold yellow", Severity.ADVICE: "bold cyan"}
_PLACES = 2  # that are shown of a finding, without -v
_AGENTS = 8  # that are named
_GAP = 2  # characters between columns
_LEAST_WIDTH = 20  # characters of a text


def print_report(console: Console, report: Report, settings: Mapping[str, Any], *, verbose: bool) -> None:
    """Print what was played, each finding, what fits the env, and the verdict.

    Args:
        settings: those of the env, for the command that is suggested.
        verbose: show more places, tracebacks too.
    """
    for finding in report.findings:
        _print_finding(console, finding, verbose=verbose)
    if rows := list(_facts(report)):
        _print_rows(console, rows)
        console.print()
    if report.is_healthy and report.facts.get("vectorizer"):
        console.print(_train_command(report, settings), soft_wrap=True, markup=False)
        console.print()
    style = "bold green" if report.is_healthy else "bold red"
    console.print(Text(f"{report.env}: {report.summary()}", style=style), soft_wrap=True)


def _print_finding(console: Console, finding: Finding, *, verbose: bool) -> None:
    title = Text(f"{finding.severity.upper()}  ", style=_STYLES[finding.severity])
    title.append(finding.title[0].upper() + finding.title[1:], style="bold")
    title.append(f"  [{finding.check}]", style="dim")
    console.print(title)
    shown = finding.seen if verbose else finding.seen[:_PLACES]
    rows = [("seen", printable(seen)) for seen in shown]  # an env's text may hold what terminals execute
    if rows and (more := finding.count - len(shown)):
        rows[-1] = "seen", f"{rows[-1][1]}, and {counted(more, 'time')} more"
    _print_rows(console, [*rows, ("why", finding.why), ("do", finding.remedy)], _GAP)
    for seen in finding.seen if verbose else ():
        if seen.details:
            console.print(Text(seen.details.rstrip(), style="dim"), soft_wrap=True)
    console.print()


def _print_rows(console: Console, rows: list[tuple[str, str]], indent: int = 0) -> None:
    """Print labels in a narrow column, and text that is wrapped beside them; a label is not repeated."""
    left = indent + max(len(label) for label, _ in rows) + _GAP
    former = None
    for label, words in rows:
        for line in Text(words).wrap(console, max(_LEAST_WIDTH, console.width - left)):
            start = "" if label == former else label
            console.print(Text.assemble((" " * indent + start.ljust(left - indent), "dim"), line.plain.rstrip()))
            former = label


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    facts = report.facts
    if facts.get("agents"):
        yield "agents", _names(facts["agents"])
    yield from _episodes(facts)
    for group in facts.get("groups", ()):
        words = one_line(f"{group['observation_space']} -> {group['action_space']}")
        yield "spaces", words if len(facts["groups"]) == 1 else f"{_names(group['agents'])}: {words}"
    alone, together = facts.get("env_steps_per_s"), facts.get("vectorizer_env_steps_per_s")
    if alone is not None:
        words = f"{alone:,.0f} in one env"
        if together is not None:
            words += f", {together:,.0f} in {facts['vectorizer_n_envs']} envs through the vectorizer"
        yield "env steps per s", words
    if facts.get("vectorizer"):
        policies = " and ".join(dict.fromkeys(group["policy"] for group in facts["groups"]))
        one = "one shared policy" if facts["policies"] == "shared" else "a policy for each agent"
        yield "fits", f"{facts['algorithm_class']} with {policies}, {one}, vectorizer {facts['vectorizer']}"
    if facts.get("action_masks"):
        others = "".join(f"; {when}, {name}" for name, when in facts["masked_too"].items())
        yield "action masks", f"given by the env; {facts['algorithm']} never takes a forbidden action{others}"
    if facts.get("compared_processes") is False:
        yield "left out", "the comparison of two processes, which have to be able to import the env"


def _episodes(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not facts.get("num_env_steps"):
        return
    words = f"{counted(facts['num_episodes'], 'whole episode')}, {counted(facts['num_env_steps'], 'env step')}"
    length, total = facts["episode_len"], facts["episode_return"]
    if length is not None:
        ends = ", ".join(f"{count} {how}" for how, count in facts["ends"].items())
        words += f"; ends of agents: {ends or 'none'}"
    elif facts["unending"]:
        words += f"; no end in {counted(facts['unending'], 'env step')}"
    yield "played", words
    if length is not None and total is not None:
        yield "episode length", f"mean {number(length['mean'], 1)}, {length['min']:,} to {length['max']:,}"
        span = f"{number(total['min'])} to {number(total['max'])}"
        yield "sum of returns", f"mean {number(total['mean'])}, {span}, with random actions"


def _names(agents: list[str]) -> str:
    shown = ", ".join(agents[:_AGENTS])
    return f"{len(agents)}: {shown}{', ...' if len(agents) > _AGENTS else ''}"


def _train_command(report: Report, settings: Mapping[str, Any]) -> str:
    """Write the command that trains in the env as it was examined."""
    facts, words = report.facts, ["python -m marl_sb3.train", shlex.quote(report.env)]
    words += [] if facts["algorithm"] == "ppo" else [f"--algo {facts['algorithm']}"]
    words += ["--policies per_agent"] if facts["policies"] == "per_agent" else []
    words += [f"--set {shlex.quote(f'{name}={value}')}" for name, value in settings.items()]
    return " ".join(words)
