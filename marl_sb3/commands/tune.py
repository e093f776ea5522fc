"""`python -m marl_sb3.tune`: search for better settings, and print the results.

The function `marl_sb3.tune(...)` is in `marl_sb3.tools.tuning.api`; the command is `marl_sb3.tune.main`.
"""

import shlex
from typing import TYPE_CHECKING, Annotated, Any

from marl_sb3 import cli
from marl_sb3.output import print_text
from marl_sb3.startup import without_collections
from marl_sb3.tools.tuning.options import SamplingOptions, SteppingOptions, StudyOptions, TrialOptions

if TYPE_CHECKING:
    from rich.console import Console

    from marl_sb3.tools.tuning.search import Search
    from marl_sb3.tools.tuning.study import TuneStudy


# --- The command line ------------------------------------------------------------------------------------------------


_EPILOG = """\
A space file has a range for each parameter:
  batch_size: {choices: [64, 128, 256]}
  learning_rate: {log_uniform: [1e-4, 3e-3], linear: true}   # lin_X
  gamma: {uniform: [0.9, 0.999]}
  n_epochs: {int: [3, 15]}
  pol1.learning_rate: {choices: [1e-4, 3e-4]}                 # of one policy
  ent_coef: 0.01                                              # a constant
RLlib's names (minibatch_size, lr, num_epochs, lambda, ...) are accepted.

examples
  python -m marl_sb3.tune --trials 50
  python -m marl_sb3.tune arena --trials 100 --workers 2 --confirm-seeds 20
  python -m marl_sb3.tune arena --sampler pbt --trials 8 --workers 2
  python -m marl_sb3.tune CartPole-v1 --grid minibatch_size=128,200,256
  python -m marl_sb3.tune --study NAME      continue a study

exit codes: 0 done, 1 failed, 2 wrong command line or settings, 130 interrupted
"""

# Options that a study does not keep.
OF_EACH_CALL = ("workers", "confirm_seeds", "confirm_best", "no_confirm", "ray", "runner_cpus", "ray_runtime_env")


@cli.record
class TuneOptions:
    """What `tune` takes."""

    env: Annotated[str | None, "ENV", "the env to train in; default: arena, or the study's"]
    env_option: Annotated[cli.BesideENV, cli.Section("what is searched")]
    trial: TrialOptions
    sampling: Annotated[SamplingOptions, cli.Section("how it is searched")]
    confirm_seeds: Annotated[
        int | None,
        "--confirm-seeds K",
        "train the best trials and the preset again with up to K fresh seeds each, as long as trials; default: up to "
        "10, as many as cost no more than the trials; a trial that is better, and the preset, with as many others",
    ]
    confirm_best: Annotated[int | None, "--confirm-best B", "number of trials that are trained again; default: up to 3"]
    no_confirm: Annotated[bool, "--no-confirm", "train none again: best.yml has the best trial, untested; default: off"]
    study: Annotated[StudyOptions, cli.Section("study")]
    workers: Annotated[int, cli.Section("how it runs"), "--workers N", "processes that run trials; default: 1"] = 1
    ray: Annotated[cli.RayOptions, {"what": "train the trials on Ray, --workers N at a time", "process": "trial"}]
    stepping: SteppingOptions
    quiet: Annotated[bool, cli.Section("output"), "--quiet", "print the study's folder alone; default: off"]

    def of_study(self) -> dict[str, Any]:
        """Return the arguments of `prepare_study`.

        Raises:
            ConfigError: two envs are named, a `--set` is not `KEY=VALUE`, or a `--stop` not `METRIC=NUMBER`.
        """
        given: dict[str, Any] = {**self.trial, **self.sampling, **self.study, **self.stepping}
        settings, stop = cli.assignments("--set", given["settings"] or ()), cli.stop_conditions(given["stop"] or ())
        return {**given, "env": self.env_option.named(self.env), "settings": settings, "stop": stop}


def command_to_continue(search: "Search", options: TuneOptions) -> str:
    """Return the command that continues a search, without the password of its database.

    Args:
        options: those of the present call, of which those that a study does not keep are repeated.
    """
    defaults = {option.name: value for option, value in cli.given_options(main.values([])["options"])}
    given = {
        each.name: (each.flag, value) for each, value in cli.given_options(options) if value != defaults[each.name]
    }
    repeated: list[tuple[str, object]] = [("--study", shlex.quote(search.name))]
    repeated += [("--storage", shlex.quote(url))] if (url := search.to_plain()["storage"]) else []
    repeated += [("--import", module) for module in options.env_option.imports]
    repeated += [given[name] for name in OF_EACH_CALL if name in given]
    words = "".join(f" {flag}" if value is True else f" {flag} {value}" for flag, value in repeated)
    return f"python -m marl_sb3.tune {shlex.quote(search.env)}{words}"


# --- The command -----------------------------------------------------------------------------------------------------


@cli.command("tune [ENV] [options]", "Search for better hyperparameters and settings.", _EPILOG)
def main(options: TuneOptions) -> int:
    """Search, and print the results; returns the exit code."""
    from marl_sb3.extensions.display.screen import standard_console
    from marl_sb3.extensions.display.text import short_path

    with without_collections():
        from marl_sb3.tools.tuning.api import prepared
    from marl_sb3.tools.tuning.finals import cost_words
    from marl_sb3.tools.tuning.trials import require_any_complete

    console = standard_console()
    seeds, best = 0 if options.no_confirm else options.confirm_seeds, options.confirm_best
    with prepared(options.of_study(), options.workers, seeds, best, options.ray.settings()) as (study, run):
        if not options.quiet:
            done = f", {study.n_done()} of {study.search.n_trainings} trials done" if study.continued else ""
            start = f"{'continuing' if study.continued else 'new'} study {study.search.name}{done}"
            console.print(f"{start}: {short_path(study.folder)}", soft_wrap=True)
            console.print(cost_words(study, best, seeds), soft_wrap=not console.is_terminal)
        try:
            run(console=None if options.quiet else console)
        except BaseException as error:
            _report_unfinished(study, options, console, error)
            raise
    _report(study, options, console)
    require_any_complete(study)
    print_text(short_path(study.folder))
    return cli.EXIT_DONE


def _report(study: "TuneStudy", options: TuneOptions, console: "Console") -> None:
    """Write the files of the study, and print the results."""
    from marl_sb3.tools.tuning.report import write_files
    from marl_sb3.tools.tuning.view import print_outcome

    files = write_files(study)
    if not options.quiet:
        print_outcome(console, study, files)


def _report_unfinished(study: "TuneStudy", options: TuneOptions, console: "Console", reason: BaseException) -> None:
    """Report after an interruption or an error, which remains the reason why the command ends."""
    try:
        _report(study, options, console)
    except Exception as error:  # a full disk, for example
        console.print(f"the report cannot be written: {error}", soft_wrap=True)
    if not options.quiet and getattr(reason, "key", None) != "objective":  # which a study keeps
        console.print(f"continue with: {command_to_continue(study.search, options)}", soft_wrap=True)
