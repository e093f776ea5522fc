"""The figures of reports, by plotly: returns, lengths and the metrics of learners over env steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from plotly.graph_objects import Figure
from plotly.subplots import make_subplots

from marl_sb3.extensions.display import words
from marl_sb3.results import AGENT_RETURNS, COLORS, GREY, PAGE_LAYOUT, RETURN, RunRecord
from marl_sb3.tools.looking.health import Column, by_agent, policies_in

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_LAYOUT = {**PAGE_LAYOUT, "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"}}
_MOST_LINES = 40
_PANEL_PX = 260
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


def curves_of(run: RunRecord) -> Iterator[Any]:
    """Returns of all agents together, of each, lengths of episodes, and the metrics of the env."""
    yield _total(run)
    returns = by_agent(run.columns, AGENT_RETURNS)
    custom = {
        name.removesuffix("_mean"): column
        for name, column in by_agent(run.columns, "env_runners/custom_metrics").items()
        if name.endswith("_mean")
    }
    if len(returns) > 1:
        yield _lines(run.steps, returns, "return of an agent")
    if "env_runners/episode_len_mean" in run.columns:
        yield _lines(run.steps, {"episode length": run.columns["env_runners/episode_len_mean"]}, "env steps")
    if custom:
        yield _lines(run.steps, custom, "per episode")


def _total(run: RunRecord) -> Any:
    """The sum of returns: mean, and a band from the lowest to the highest episode; evaluations as points."""
    figure = _figure("sum of returns")
    low, mean, high = (run.columns.get(f"env_runners/episode_return_{name}") for name in ("min", "mean", "max"))
    if low is not None and high is not None:
        known = np.isfinite(low) & np.isfinite(high)
        x = np.concatenate([run.steps[known], run.steps[known][::-1]])
        y = np.concatenate([high[known], low[known][::-1]])
        fill = {"fill": "toself", "fillcolor": "rgba(0,114,178,0.15)", "line": {"width": 0}, "hoverinfo": "skip"}
        figure.add_scatter(x=x.tolist(), y=y.tolist(), name="lowest to highest", **fill)
    if mean is not None:
        figure.add_scatter(x=run.steps.tolist(), y=_plain(mean), name="training", line={"color": COLORS[0]})
    evaluated = run.columns.get(f"evaluation/{RETURN}")
    if evaluated is not None:
        known = np.isfinite(evaluated)
        style = {"mode": "lines+markers", "line": {"color": COLORS[1], "dash": "dot"}, "name": "evaluation"}
        figure.add_scatter(x=run.steps[known].tolist(), y=_plain(evaluated[known]), **style)
    return figure


def learner_curves(run: RunRecord) -> Any:
    """A panel for each metric of learners, with a line for each policy."""
    policies = policies_in(run.columns)[: len(COLORS) * 2]
    shown = [name for name in _LEARNER if any(f"learners/{policy}/{name}" in run.columns for policy in policies)]
    n_rows = max(1, math.ceil(len(shown) / 2))
    gap = 60 / (n_rows * _PANEL_PX) if n_rows > 1 else 0
    titles = [_LEARNER[name] for name in shown]
    figure = make_subplots(n_rows, 2, subplot_titles=titles, vertical_spacing=gap, horizontal_spacing=0.08)
    for place, name in enumerate(shown):
        for index, policy in enumerate(policies):
            column = run.columns.get(f"learners/{policy}/{name}")
            if column is not None:
                style = {**_style(index, policy), "legendgroup": policy, "showlegend": place == 0}
                at = {"row": place // 2 + 1, "col": place % 2 + 1}
                figure.add_scatter(x=run.steps.tolist(), y=_plain(column), **style, **at)
    figure.update_layout(**_LAYOUT, height=n_rows * _PANEL_PX + 60, showlegend=len(policies) > 1)
    figure.update_layout(legend={"y": 1.0 + 40 / (n_rows * _PANEL_PX)})
    return figure.update_xaxes(gridcolor=GREY, zeroline=False).update_yaxes(gridcolor=GREY, zeroline=False)


def _lines(steps: Column, columns: dict[str, Column], title: str) -> Any:
    figure = _figure(title)
    for index, (name, column) in enumerate(list(columns.items())[:_MOST_LINES]):
        figure.add_scatter(x=steps.tolist(), y=_plain(column), **_style(index, name))
    return figure.update_layout(showlegend=True, height=360)


def _style(index: int, name: str) -> dict[str, Any]:
    line = {"color": COLORS[index % len(COLORS)], "dash": _DASHES[index % len(_DASHES)], "width": 2}
    return {"name": words(name), "line": line, "mode": "lines"}


def _plain(column: Column) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in column]


def _figure(title: str) -> Any:
    axis = {"gridcolor": GREY, "zeroline": False}
    return Figure(layout={**_LAYOUT, "xaxis": {"title": "env steps", **axis}, "yaxis": {"title": title, **axis}})
