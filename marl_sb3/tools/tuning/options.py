"""The options of a search, declared once: for `marl_sb3.tune`, `prepare_study` and the command line of `tune`."""

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, cast

from marl_sb3.cli import ALGO, REPEATED, Python, Setting, options_of
from marl_sb3.doors import counterpart

if TYPE_CHECKING:
    from pathlib import Path

    from marl_sb3.core.config.algorithms import AlgorithmInfo
    from marl_sb3.runs.files import Hparams
    from marl_sb3.tools.tuning.search import Pruner, Sampler
    from marl_sb3.tools.tuning.space import Grid, SpaceSource

Function = TypeVar("Function", bound=Callable[..., Any])


class TrialOptions(TypedDict, total=False):
    """What is searched."""

    policies: Annotated[str | None, Setting("policies")]
    algo: Annotated["str | AlgorithmInfo | None", ALGO]
    n_envs: Annotated[int | None, Setting("n_envs")]
    timesteps: Annotated[int | None, "--timesteps N", "env steps of a trial; default: as in the preset"]
    settings: Annotated[
        "Mapping[str, Any] | None",
        "--set KEY=VALUE",
        "fix a setting in every trial; may be repeated; default: none",
        Python("set in every trial and therefore not searched, by keys as after `--set`"),
        REPEATED,
    ]
    stop: Annotated[
        "Mapping[str, float] | None",
        "--stop METRIC=VALUE",
        "end a trial when a metric is at least VALUE; may be repeated; default: train it for all env steps",
        Python("values by metric; a trial ends when one metric reaches its value"),
        REPEATED,
    ]
    hparams: Annotated[
        "Hparams | None",
        "--hparams FILE",
        "settings by env id, which the search starts from and is compared with: a file; default: the shipped preset",
        Python(
            "settings by env id, which the search starts from and is compared with: a file or a mapping; "
            "default: the shipped preset"
        ),
    ]
    space: Annotated[
        "SpaceSource",
        "--space FILE",
        "the ranges to search: a file; default: those shipped for the algorithm",
        Python("the ranges to search: a file, or a mapping of the same form; default: those shipped for the algorithm"),
    ]
    grid: Annotated[
        "Grid",
        "--grid KEY=A,B,C",
        "try exactly these values, of several --grid all combinations; may be repeated; default: none",
        Python("the exact values of each parameter, instead of a space: a mapping, or strings `name=a,b,c`"),
        REPEATED,
    ]


class SamplingOptions(TypedDict, total=False):
    """How it is searched."""

    trials: Annotated[
        int | None,
        "--trials N",
        "number of settings to try; of `pbt` the size of the population; default: 50, 8 with pbt, or the whole grid",
    ]
    seed: Annotated[
        int | None,
        "--seed S",
        "seed of the search, which determines that of every trial and the draws of the sampler; default: 0",
    ]
    sampler: Annotated[
        "Sampler | None",
        "--sampler NAME",
        "how settings are chosen: `tpe`, `random`, `grid` or `gp`; or `pbt`, population based training: all trials "
        "train in step, and after each evaluation the worst copy weights and settings of the best and change the "
        "settings; default: `tpe`, or `grid` with a grid",
    ]
    pbt_quantile: Annotated[
        float | None,
        "--pbt-quantile Q",
        "with pbt, share of the trials that copy, and of those that are copied; at most 0.5; default: 0.25",
    ]
    pbt_resample: Annotated[
        float | None,
        "--pbt-resample P",
        "with pbt, probability with which a copied setting is drawn anew instead of changed by a fifth; default: 0.1",
    ]
    pruner: Annotated[
        "Pruner | None",
        "--pruner NAME",
        "which trials end early: `asha`, `median` or `none`; default: `asha`, or `none` with a grid or several "
        "objectives",
    ]
    objective: Annotated[
        str | None,
        "--objective WHAT",
        "`sum` or `min` of all agents' returns, `against_random`, an agent, a policy, a custom metric or the flat "
        "name of any metric; or several of these with commas between them; default: `sum`",
    ]
    mode: Annotated[
        str | None,
        "--mode M",
        "whether the objective is maximized or minimized: `max` or `min`, or one for each objective; default: `max`",
    ]
    over: Annotated[
        str | None,
        "--over WHICH",
        "which evaluations of a trial count: `last`, `best` or `mean_of_last_K`; default: `mean_of_last_3`",
    ]
    evaluations: Annotated[
        int | None, "--evaluations N", "evaluations of a trial, equally spaced; default: 10, or fewer in a short trial"
    ]
    evaluation_episodes: Annotated[int | None, "--evaluation-episodes N", "episodes of an evaluation; default: 10"]


class StudyOptions(TypedDict, total=False):
    """Where it is kept."""

    study: Annotated[
        str | None,
        "--study NAME",
        "name of the study; an existing one is continued, and one that may be a typo of another is refused; "
        "default: time and 4 hex digits",
    ]
    new_study: Annotated[
        bool,
        "--new-study",
        "begin a new study even if its name is similar to that of another one, and refuse an existing name; "
        "default: off",
    ]
    storage: Annotated[
        str | None,
        "--storage URL",
        "the URL of a database, such as `sqlite:///study.db`; default: a journal in the study's folder",
    ]


class SteppingOptions(TypedDict, total=False):
    """How envs are stepped, and on which device networks are."""

    vectorizer: Annotated[str | None, Setting("vectorizer")]
    device: Annotated[str | None, Setting("device")]


class SearchOptions(TrialOptions, SamplingOptions, StudyOptions, SteppingOptions, total=False):
    """The options of a search. None is the same as not given; a study that is continued keeps its own values then."""

    root: Annotated["str | Path", "root", "studies are in `tune/<env>/<name>` below this folder; default: `runs`"]


def takes_search_options(function: Function) -> Function:
    """Give a function with `**options` the signature and the docstring of one with the options of a search."""
    own = inspect.signature(function)
    *parameters, _ = own.parameters.values()
    listed = list(options_of(SearchOptions))
    # A type that only type checkers know is shown by its name.
    options = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=getattr(each.kind, "__forward_arg__", each.kind),
        )
        for each in listed
    ]
    declared = own.replace(parameters=[*parameters, *options])

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        for name in given:
            if name not in declared.parameters:
                words = f"{function.__name__}() got an unexpected keyword argument {name!r}"
                raise TypeError(f"{words}{counterpart(name, 'search')}")
        return function(*args, **given)

    entries = (
        f"{' ' * 8}{each.name}: {words.words if (words := each.find(Python)) else each.words}." for each in listed
    )
    text = "".join(f"{textwrap.fill(entry, 120, subsequent_indent=' ' * 12)}\n" for entry in entries)
    checked.__doc__ = re.sub(r"^ +options: .*\n", lambda _: text, function.__doc__ or "", flags=re.MULTILINE)
    checked.__signature__ = declared  # type: ignore[attr-defined]
    return cast("Function", checked)
