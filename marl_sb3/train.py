"""`python -m marl_sb3.train`: parse the command line, call `runs`, print.

The function `marl_sb3.train(...)` of the library is `marl_sb3.runs.train.train`;
`from marl_sb3.train import main` gets the command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from marl_sb3.cli import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    CommandParser,
    add_device_options,
    add_env_option,
    add_hparams,
    add_ray_options,
    add_server_options,
    add_setting,
    add_setup_options,
    add_verbosity,
    assignments,
    found_run,
    integer,
    named_env,
    number_of_workers,
    require_no_server_options,
    runner_settings,
    server_settings,
    stop_conditions,
)
from marl_sb3.core.config import EXTERNAL
from marl_sb3.errors import ConfigError
from marl_sb3.runs import TRACKERS
from marl_sb3.signals import end_with_parent
from marl_sb3.startup import without_collections

if TYPE_CHECKING:
    from marl_sb3.runs import Recording, Run, TrainConfig


# --- The command line ------------------------------------------------------------------------------------------------


_EPILOG = """\
ENV is one of
  arena                     the built-in two-agent grid
  waterworld                built in: pursuers that eat food and avoid poison
  sisl/pursuit-v5           an id of PettingZoo's registry
  CartPole-v1               an id of Gymnasium's: one agent, called agent
  mpe2/simple_spread-v3     an id of an installed package
  package.module:factory    a function that makes any such env
  package:Env-v0            an id that a package registers

KEY of --set is a setting of the preset file or one of SB3's arguments:
  --set learning_rate=lin_3e-4        for every policy; lin_X: from X down to 0
  --set agent1.learning_rate=4e-4     for one policy
  --set env.height=6                  an argument of the env
  --set policy_kwargs.net_arch=[32,32]

examples
  python -m marl_sb3.train arena
  python -m marl_sb3.train arena --policies per_agent --seed 1
  python -m marl_sb3.train arena --seeds 5
  python -m marl_sb3.train arena --stop env_runners/episode_return_mean=15
  python -m marl_sb3.train --hparams runs/arena/20260101-120000-abcd/config.yaml
  python -m marl_sb3.train --resume runs/arena/20260101-120000-abcd

exit codes: 0 done, 1 failed, 2 wrong command line or settings, 130 interrupted
"""


def build_parser() -> CommandParser:
    """Make the parser of `train`."""
    parser = CommandParser(
        "python -m marl_sb3.train", "[ENV] [options]", description="Train the agents of an env.", epilog=_EPILOG
    )
    parser.add_argument("env", metavar="ENV", nargs="?", help="the env to train in; default: the one in --hparams")
    _add_what_is_trained(parser)
    _add_how_it_runs(parser)
    _add_clients(parser)
    _add_run_folder(parser)
    parser.section("output")
    parser.option(
        "--print-config",
        "print all settings as YAML, which --hparams takes, and do not train; default: train",
    )
    parser.option(
        "--agents N",
        "number of agents to show, the best and the worst ones, or all; default: 8",
        type=_most_agents,
        default=8,
    )
    parser.option("--quiet", "print the run folder alone; default: off")
    add_verbosity(parser)
    return parser


def _add_what_is_trained(parser: CommandParser) -> None:
    parser.section("what is trained")
    add_env_option(parser, also_positional=True)
    add_setup_options(parser)
    add_setting(parser, "--timesteps N", "n_timesteps", "as in the preset, else 1000000", type=integer)
    add_setting(parser, "--seed S", "seed", "random, written to config.yaml", type=integer)
    parser.option(
        "--seeds N|A,B,C",
        "train with N seeds from --seed (or 0) on, or with these seeds: as many training runs at a time as there are "
        "cores, a run folder each, and a table of the means; default: one seed",
        type=_seeds,
    )
    parser.repeated("--set KEY=VALUE", "change a setting, see below; may be repeated; default: none", dest="settings")
    add_hparams(parser)
    parser.repeated(
        "--callback MODULE:CLASS",
        "call a callback of yours, with the arguments that a settings file gives it, else none; may be repeated; "
        "default: those of the settings file, with --trust-file",
        dest="callbacks",
    )
    parser.repeated(
        "--stop METRIC=VALUE",
        "end the run when a metric is at least VALUE; may be repeated; with --resume, none takes away what the run "
        "has; default: train for all env steps, or as the run that is resumed",
    )
    parser.option(
        "--init-from SOURCE",
        "start from the weights of [POLICY=]PATH[:SOURCE_POLICY], where PATH is a run folder (the checkpoint that "
        "evaluate takes), a checkpoint or an SB3 zip; may be repeated; --set init_layers=[...] takes only some layers; "
        "default: random weights",
        action="append",
    )
    parser.option("--trust-pickle", "read SB3 zips, which may run code: only for files you trust; default: off")


def _add_how_it_runs(parser: CommandParser) -> None:
    parser.section("how it runs")
    add_device_options(parser)
    add_setting(parser, "--workers N", "n_workers", dest="n_workers", type=number_of_workers)
    add_ray_options(parser, "roll out the envs on Ray, in n_shards shares (--set n_shards=N)", "runner")
    parser.option(
        "--runners N",
        "processes that roll out the envs, in n_shards shares: of this machine, or on Ray; their number changes no "
        "result; default: none, or with --ray one for each CPU of this machine",
        type=integer,
    )
    add_setting(parser, "--on-nan WHAT", "on_nan")


def _add_run_folder(parser: CommandParser) -> None:
    parser.section("run folder")
    parser.option("--run-dir DIR", "folder of the run, new or empty; default: runs/ENV/TIME-XXXX")
    parser.option(
        "--resume RUN",
        "continue a run from its newest checkpoint, in its folder; --timesteps N then trains N env steps more, and "
        "schedules such as lin_X lead to the new end; --set KEY=VALUE changes settings such as learning_rate; default: "
        "none",
    )
    parser.option(
        "--record DIR",
        "record complete episodes, as one Minari dataset for each policy, in a new or empty folder; with --resume, "
        "also in that of the same run; default: nothing is recorded",
    )
    parser.option("--record-limit SIZE", "stop recording at this size, such as 2GB; default: no limit")
    add_setting(parser, "--checkpoint-every K", "checkpoints.every", type=integer)
    parser.option(
        "--track TRACKER",
        f"send metrics, settings, checkpoints and films to {', '.join(TRACKERS[:-1])} or {TRACKERS[-1]}, each an "
        "extra; may be repeated; default: none; with --resume, those of the run",
        action="append",
        choices=TRACKERS,
    )


def _add_clients(parser: CommandParser) -> None:
    parser.section("clients that step the env")
    parser.option(
        "--external SPEC",
        "learn from clients over HTTP, which step the env themselves: a YAML file of agents with their spaces, and "
        "settings; default: the env ENV, stepped here",
    )
    add_server_options(parser, EXTERNAL_PORT)


EXTERNAL_PORT = 9900  # RLlib's


def _most_agents(text: str) -> int | None:
    """Parse `--agents`: an integer of at least 1, or None for `all`."""
    if text == "all":
        return None
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"received {text[:60]!r}; accepted: all, or an integer of at least 1")


def _seeds(text: str) -> list[int] | int:
    """Parse `--seeds`: a number of seeds, or the seeds themselves, which are different."""
    accepted = "a number of seeds of at least 1, such as 5, or different seeds such as 1,5,7"
    given = [part.strip() for part in text.split(",") if part.strip()]
    seeds = [int(part) for part in given if part.isdecimal() and len(part) <= 10]
    if not seeds or len(seeds) < len(given) or len(set(seeds)) < len(seeds) or ("," not in text and seeds[0] < 1):
        raise argparse.ArgumentTypeError(f"received {text[:60]!r}; accepted: {accepted}")
    return seeds if "," in text else seeds[0]


def chosen_seeds(arguments: argparse.Namespace) -> list[int]:
    """Return the seeds that `--seeds` asks for.

    Raises:
        ConfigError: another option does not go with it.
    """
    others = ("resume", "print_config", "ray", "runners", "record")
    for name in (*others, *(["seed"] if isinstance(arguments.seeds, list) else [])):
        if getattr(arguments, name) not in (None, False):
            raise ConfigError(f"--seeds and --{name.replace('_', '-')} are given; accepted: one of them", key="seeds")
    if isinstance(arguments.seeds, list):
        return list(arguments.seeds)
    first = arguments.seed or 0
    return list(range(first, first + arguments.seeds))


# Options that are settings of the same name; a resume can change some of them.
RESUME_SETTINGS = ("checkpoint_every", "on_nan", "track", "n_workers")
SETTINGS = ("policies", "n_envs", "seed", "vectorizer", "device", "init_from", *RESUME_SETTINGS)

_NOT_WITH_RESUME = (
    *("algo", "hparams", "external", "run_dir", "trust_pickle", "trust_file", "print_config"),
    *(name for name in SETTINGS if name not in RESUME_SETTINGS),
)


def require_resumable(arguments: argparse.Namespace) -> None:
    """Refuse options that would change a resumed run."""
    for name in _NOT_WITH_RESUME:
        given = getattr(arguments, name)
        if given is not None and given is not False and given != []:
            raise ConfigError(
                f"--{name.replace('_', '-')} cannot change a resumed run; accepted with --resume: ENV or --env, "
                "--import, --timesteps, --set of what its state does not depend on, --stop, --checkpoint-every, "
                "--on-nan, --track, --workers, --runners, --ray and its options, --record, --record-limit, --agents, "
                "--quiet, -v",
                key=name,
            )


# --- The command -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    end_with_parent()
    return build_parser().run(_train, argv)


def _train(arguments: argparse.Namespace) -> int:
    if arguments.seeds is not None:
        return _train_seeds(arguments)
    with without_collections():
        if arguments.print_config:
            return _print_config(arguments)
        run = _prepare(arguments)
    with _clients_served(arguments, run):
        if arguments.quiet:
            from marl_sb3.runs.execute import execute

            execute(run)
        else:
            from marl_sb3.runs import execute_and_show

            execute_and_show(run, most_agents=arguments.agents)
    print(run.files.shown, flush=True)
    return EXIT_INTERRUPTED if run.interrupted else EXIT_DONE


@contextmanager
def _clients_served(arguments: argparse.Namespace, run: Run) -> Iterator[None]:
    """Serve the clients that step the env of the run, if clients do."""
    if run.config.env != EXTERNAL:
        require_no_server_options(arguments, "--external SPEC")
        yield
        return
    from marl_sb3.runs import undone_on_error
    from marl_sb3.tools.serving import require_extra

    with undone_on_error(run.close):
        require_extra("--external")
        from marl_sb3.tools.serving.external import external_server

        server = external_server(run.algorithm, **server_settings(arguments, EXTERNAL_PORT))
    with server:
        print(f"clients connect to {server.address}", file=sys.stderr, flush=True)
        yield


def _prepare(arguments: argparse.Namespace) -> Run:
    if arguments.resume is not None:
        return _resume(arguments)
    config, runners = _config(arguments), runner_settings(arguments)
    from marl_sb3.runs import prepare  # takes seconds: wrong options are refused before

    record = _recording(arguments)
    return prepare(config, arguments.run_dir, trust_pickle=arguments.trust_pickle, runners=runners, record=record)


def _recording(arguments: argparse.Namespace) -> Recording | None:
    if arguments.record is None:
        if arguments.record_limit is not None:
            raise ConfigError("--record-limit needs --record DIR", key="record_limit")
        return None
    from marl_sb3.runs import Recording

    return Recording(arguments.record, arguments.record_limit)


def _train_seeds(arguments: argparse.Namespace) -> int:
    """Train with several seeds; returns the exit code: 1 if one of them failed."""
    seeds, config = chosen_seeds(arguments), _config(arguments)
    from marl_sb3.runs import SeedRuns  # takes seconds, as above

    with without_collections():
        runs = SeedRuns(config, seeds, arguments.run_dir, trust_pickle=arguments.trust_pickle)
    if arguments.quiet:
        runs.execute()
    else:
        from marl_sb3.runs import execute_and_show_seeds

        execute_and_show_seeds(runs, arguments.agents)
    print(runs.shown, flush=True)
    return EXIT_DONE if all(run.is_done for run in runs.runs) else EXIT_FAILED


def _print_config(arguments: argparse.Namespace) -> int:
    """Print the configuration that the run would have; returns the exit code."""
    if arguments.resume is not None:
        require_resumable(arguments)
    config, runners = _config(arguments), runner_settings(arguments)
    from marl_sb3.runs import (
        resolve,  # takes seconds, as above
        to_yaml,
    )

    print(to_yaml(resolve(config, trust_pickle=arguments.trust_pickle, runners=runners)), end="", flush=True)
    return EXIT_DONE


def _config(arguments: argparse.Namespace) -> TrainConfig:
    from marl_sb3.runs import load_config

    env, hparams = named_env(arguments), arguments.hparams
    if arguments.external is not None:
        if env is not None or hparams is not None:
            words = "--external is given with an env or --hparams; accepted: one of them"
            raise ConfigError(words, key="external")
        from marl_sb3.envs import read_external

        env, hparams = EXTERNAL, read_external(arguments.external)
    return load_config(
        env,
        arguments.algo,
        hparams,
        assignments("--set", arguments.settings),
        n_timesteps=arguments.timesteps,
        stop=stop_conditions(arguments),
        callbacks=arguments.callbacks or None,
        trust_file=arguments.trust_file,
        **{name: getattr(arguments, name) for name in SETTINGS},
    )


def _resume(arguments: argparse.Namespace) -> Run:
    changes: dict[str, Any] = {
        "stop": stop_conditions(arguments),
        "runners": runner_settings(arguments),
        "settings": assignments("--set", arguments.settings),
        "callbacks": arguments.callbacks or (),
        **{name: getattr(arguments, name) for name in RESUME_SETTINGS},
    }
    require_resumable(arguments)
    folder = found_run(arguments.resume)
    from marl_sb3.runs import resume_run  # takes seconds: wrong options are refused before

    return resume_run(folder, arguments.timesteps, named_env(arguments), record=_recording(arguments), **changes)


if __name__ == "__main__":
    sys.exit(main())
