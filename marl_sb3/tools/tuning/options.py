"""The options of a search, declared once: for `marl_sb3.tune`, `prepare_study` and the command line of `tune`."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

from marl_sb3.core.config import documented

if TYPE_CHECKING:
    from pathlib import Path

    from marl_sb3.core.config import AlgorithmInfo
    from marl_sb3.runs import Hparams
    from marl_sb3.tools.tuning.search import Pruner, Sampler
    from marl_sb3.tools.tuning.space import Grid, SpaceSource

Function = TypeVar("Function", bound=Callable[..., Any])


class SearchOptions(TypedDict, total=False):
    """The options of a search. None is the same as not given; a study that is continued keeps its own values then."""

    trials: int | None  # number of settings to try; None: 50, or the whole grid
    timesteps: int | None  # env steps of a trial; None: as in the preset
    policies: str | None  # `shared` or `per_agent`; None: as in the preset
    # name of the algorithm; or an `AlgorithmInfo`, or the place of one as `package.module:NAME`; None: PPO
    algo: str | AlgorithmInfo | None
    n_envs: int | None  # number of envs of a trial; None: as in the preset
    seed: int | None  # seed of the search, which determines that of every trial and the draws of the sampler; None: 0
    settings: Mapping[str, Any] | None  # set in every trial and therefore not searched, by keys as after `--set`
    stop: Mapping[str, float] | None  # values by metric; a trial ends when one metric reaches its value
    # settings by env id, which the search starts from and is compared with: a file, or in Python a mapping; None: the
    # shipped preset
    hparams: Hparams | None
    # the ranges to search: a file, or in Python a mapping of the same form; None: those shipped for the algorithm
    space: SpaceSource
    grid: Grid  # the exact values of each parameter, instead of a space: a mapping, or strings `name=a,b,c`
    # how settings are chosen: `tpe`, `random`, `grid` or `gp`; None: `tpe`, or `grid` with a grid
    sampler: Sampler | None
    # which trials end early: `asha`, `median` or `none`; None: `asha`, or `none` with a grid or several objectives
    pruner: Pruner | None
    # `sum` or `min` of all agents' returns, `against_random`, an agent, a policy, a custom metric or the flat name of
    # any metric; or several of these with commas between them; None: `sum`
    objective: str | None
    # whether the objective is maximized or minimized: `max` or `min`, or one for each objective; None: `max`
    mode: str | None
    over: str | None  # which evaluations of a trial count: `last`, `best` or `mean_of_last_K`; None: `mean_of_last_3`
    evaluations: int | None  # evaluations of a trial, equally spaced; None: 10, or fewer in a short trial
    evaluation_episodes: int | None  # episodes of an evaluation; None: 10
    # name of the study; an existing one is continued, and one that may be a typo of another is refused; None: time and
    # 4 hex digits
    study: str | None
    # begin a new study even if its name is similar to that of another one, and refuse an existing name; None: off
    new_study: bool
    storage: str | None  # the URL of a database, such as `sqlite:///study.db`; None: a journal in the study's folder
    root: str | Path  # studies are in `tune/<env>/<name>` below this folder; None: `runs`
    vectorizer: str | None  # see `make_vec_env`
    device: str | None  # as in SB3


def words_of(option: str) -> str:
    """Say what an option is, for the help of the command line."""
    text = _ENTRIES.get(option, "").rstrip(".").replace("`", "")
    return re.sub(r", or in Python [^;]*", "", text.replace("; None: ", "; default: "))


_ENTRIES = documented(SearchOptions)


def takes_search_options(function: Function) -> Function:
    """Give a function with `**options` the signature and the docstring of one with the options of a search."""
    own = inspect.signature(function)
    *parameters, _ = own.parameters.values()
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=reference.__forward_arg__)
        for name, reference in SearchOptions.__annotations__.items()
    ]
    declared = own.replace(parameters=[*parameters, *options])

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        for name in given:
            if name not in declared.parameters:
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
        return function(*args, **given)

    entries = (f"{' ' * 8}{name}: {text}" for name, text in _ENTRIES.items())
    listed = "".join(f"{textwrap.fill(entry, 120, subsequent_indent=' ' * 12)}\n" for entry in entries)
    checked.__doc__ = re.sub(r"^ +options: .*\n", lambda _: listed, function.__doc__ or "", flags=re.MULTILINE)
    checked.__signature__ = declared  # type: ignore[attr-defined]
    return cast("Function", checked)
