"""`python -m marl_sb3.benchmark`: algorithms x envs x seeds of a file, trained, evaluated and compared."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from marl_sb3.cli import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, IMPORT, Section, Verbosity, command
from marl_sb3.output import print_text
from marl_sb3.startup import require_extra, without_collections

if TYPE_CHECKING:
    from marl_sb3.tools.benchmarking.plan import Benchmark

_EPILOG = """\
FILE is YAML: what is trained where, with how many seeds.
  algos: {ppo: , mappo: {algo: ppo, central_critic: true}}   # or a list
  envs: {arena: {n_timesteps: 20k}, CartPole-v1: }           # or a list
  seeds: 5                            # or a list of seeds
  settings: {n_envs: 8}               # of all trainings, as after --set
  episodes: 100                       # of the evaluation after a training
FILE may be the name of a benchmark of the package: quick, presets or teams.
The folder has a run folder for each training, which all other commands take,
table.md and marl_eval.json. The same command goes on after an interruption,
and may run on several machines at once, in a folder that they share.

examples
  python -m marl_sb3.benchmark quick
  python -m marl_sb3.benchmark my.yml --processes 8 --out my.html
  python -m marl_sb3.benchmark my.yml --folder /shared/my --worker

exit codes: 1 a training has failed, 2 wrong command line or file,
130 interrupted
"""


@command("benchmark FILE [options]", "Train algorithms in envs with several seeds each; compare them.", _EPILOG)
def main(
    file: Annotated[str, "FILE", "a YAML file, see below, or the name of a benchmark of the package"],
    *,
    folder: Annotated[
        Path | None, "--folder DIR", "folder of the runs and results, new or that of FILE; default: runs/benchmark-FILE"
    ],
    processes: Annotated[
        int | None,
        "--processes N",
        "trainings at a time, each in its own process, in one thread; default: as many as there are cores",
        Meta(ge=1),
    ],
    worker: Annotated[
        bool,
        "--worker",
        "only run trainings that no other process has begun, then end; for more machines; default: also "
        "wait for all trainings, and write the results",
    ],
    curves: Annotated[
        Literal["png", "svg", "pdf", "html"] | None,
        "--curves FORMAT",
        "also draw the learning curves in each env, into the folder; default: none",
    ],
    out: Annotated[Path | None, "--out FILE", "also a page with tables and learning curves, FILE.html; default: none"],
    trust_file: Annotated[
        bool,
        "--trust-file",
        "import all that FILE names: envs, algorithms, callbacks and opponents of your own; default: only what the "
        "package knows",
    ],
    imports: Annotated[Sequence[str], IMPORT],
    quiet: Annotated[bool, Section("output"), "--quiet", "print the folder alone; default: also progress and a table"],
    verbosity: Annotated[Verbosity, Section("other options")],
) -> int:
    """Train, print the table and the files; returns the exit code."""
    if curves is not None:
        require_extra(f"--curves {curves}", "report" if curves == "html" else "plot")
    if out is not None:
        from marl_sb3.results.drawing import require_drawable

        require_drawable(out, [".html"])
    with without_collections():
        from marl_sb3.tools.benchmarking.outcome import how_it_ended, write_outcome
        from marl_sb3.tools.benchmarking.plan import read_benchmark
        from marl_sb3.tools.benchmarking.working import run_benchmark, work

        benchmark = read_benchmark(file, folder, trust_file=trust_file)
    if worker:
        return EXIT_INTERRUPTED if work(benchmark, lambda each: _say(how_it_ended(each))) else _exit_code(benchmark)
    say = (lambda line: None) if quiet else _say
    options = ["--trust-file"] if trust_file else []
    try:
        run_benchmark(benchmark, processes, options, say, quiet=quiet)
    except KeyboardInterrupt:
        given = {"--folder": folder, "--curves": curves, "--out": out}
        options = [*(word for name, value in given.items() if value for word in (name, str(value))), *options]
        options += [f"--import={module}" for module in imports]
        say(f"continue with: python -m marl_sb3.benchmark {shlex.join([file, *options])}")
        raise
    files = write_outcome(benchmark, curves, out)
    if not quiet:
        _print_tables(benchmark)
        for path in files:
            say(str(benchmark.shown / path.relative_to(benchmark.folder)))
        if out is not None:
            say(str(out))
    print_text(benchmark.shown)
    return _exit_code(benchmark)


def _exit_code(benchmark: "Benchmark") -> int:
    return EXIT_FAILED if any(each.failure_file.exists() for each in benchmark.trainings) else EXIT_DONE


def _say(line: str) -> None:
    from marl_sb3.extensions.display.screen import standard_console

    standard_console().print(line, soft_wrap=True, markup=False, highlight=False)


def _print_tables(benchmark: "Benchmark") -> None:
    """Print a table for each env, and what has failed."""
    from marl_sb3.extensions.display.screen import standard_console
    from marl_sb3.tools.benchmarking.outcome import HEAD, how_it_ended, tables

    place = HEAD.index("measured")
    for table in tables(benchmark):
        measured = {row[place] for row in table.rows} - {"-"}
        several = ("algorithm", "measured", "IQM (95 %)", "random")  # the rest is in table.md
        single = [name for name in HEAD if name not in ("env", "measured", "env steps/s")]
        _say(f"\n{table.title}: {measured.pop()}" if (is_one := len(measured) == 1) else f"\n{table.title}")
        replace(table.columns(single if is_one else several), title="").print(standard_console())
    for training in benchmark.trainings:
        if training.failure_file.exists():
            _say(how_it_ended(training))
