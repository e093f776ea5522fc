"""`python -m marl_sb3.train`: parse the command line, call `runs`, print.

The function `marl_sb3.train(...)` of the library is `marl_sb3.runs.train.train`;
`from marl_sb3.train import main` gets the command.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from marl_sb3 import cli
from marl_sb3.core.config.values import EXTERNAL
from marl_sb3.errors import ConfigError
from marl_sb3.output import print_text
from marl_sb3.startup import require_extra, without_collections

if TYPE_CHECKING:
    from marl_sb3.extensions.remote.ray import AnyRunners
    from marl_sb3.runs.run import Run
    from marl_sb3.runs.schema import TrainConfig
    from marl_sb3.runs.start import Recording


# --- The command line ------------------------------------------------------------------------------------------------


_EPILOG = """\
ENV is one of
  arena                     the built-in two-agent grid
  waterworld                built in: pursuers that eat food and avoid poison
  sisl/pursuit-v5           an id of PettingZoo's registry
  CartPole-v1               an id of Gymnasium's: one agent, called agent
  mpe2/simple_spread-v3     an id of an installed package
  open_spiel/leduc_poker    a game of OpenSpiel in which players take turns
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


@cli.record
class TrainOptions:
    """What `train` takes."""

    env: Annotated[str | None, "ENV", "the env to train in; default: the one in --hparams"]
    env_option: Annotated[cli.BesideENV, cli.Section("what is trained")]
    policies: Annotated[str | None, cli.Setting("policies")]
    algo: Annotated[str | None, cli.ALGO]
    n_envs: Annotated[int | None, cli.Setting("n_envs")]
    n_timesteps: Annotated[int | None, cli.Setting("n_timesteps")]
    seed: Annotated[int | None, cli.Setting("seed")]
    seeds: Annotated[
        list[int] | int | None,
        "--seeds N|A,B,C",
        "train with N seeds from --seed (or 0) on, or with these seeds: as many training runs at a time as there "
        "are cores, a run folder each, and a table of the means; default: one seed",
        _seeds,
        cli.NEW_RUN,
    ]
    settings: Annotated[Sequence[str], "--set KEY=VALUE", "change a setting, see below; may be repeated; default: none"]
    hparams: Annotated[str | None, cli.HPARAMS]
    trust_file: Annotated[bool, cli.TRUST_FILE]
    callbacks: Annotated[
        Sequence[str],
        "--callback MODULE:CLASS",
        "call a callback of yours, with the arguments that a settings file gives it, else none; may be repeated; "
        "default: those of the settings file, with --trust-file",
    ]
    against: Annotated[
        Sequence[str],
        "--against WHO",
        "train against an opponent that does not learn: a run or checkpoint, `random`, a player of the package such as "
        "minimax2, or MODULE:CLASS; may be repeated; default: those of the settings, see league",
        cli.NEW_RUN,
    ]
    stop: Annotated[
        Sequence[str],
        "--stop METRIC=VALUE",
        "end the run when a metric is at least VALUE; may be repeated; with --resume, none removes what the "
        "run has; default: train for all env steps, or as the run that is resumed",
    ]
    init_from: Annotated[Sequence[str] | None, cli.Setting("init_from")]
    trust_pickle: Annotated[
        bool, "--trust-pickle", "read SB3 zips, which may run code: only for files you trust; default: off", cli.NEW_RUN
    ]
    vectorizer: Annotated[str | None, cli.Section("how it runs"), cli.Setting("vectorizer")]
    device: Annotated[str | None, cli.Setting("device")]
    n_workers: Annotated[int | str | None, cli.Setting("n_workers"), cli.number_of_workers]
    ray: Annotated[
        cli.RayOptions, {"what": "roll out the envs on Ray, in n_shards shares (--set n_shards=N)", "process": "runner"}
    ]
    runners: Annotated[
        int | None,
        "--runners N",
        "processes that roll out the envs, in n_shards shares: of this machine, or on Ray; their number changes no "
        "result; default: none, or with --ray one for each CPU of this machine",
    ]
    on_nan: Annotated[str | None, cli.Setting("on_nan")]
    external: Annotated[
        str | None,
        cli.Section("clients that step the env"),
        "--external SPEC",
        "learn from clients over HTTP, which step the env themselves: a YAML file of agents with their spaces, and "
        "settings; default: the env ENV, stepped here",
        cli.NEW_RUN,
    ]
    server: Annotated[cli.ServerOptions, {"default": str(EXTERNAL_PORT)}]
    run_dir: Annotated[str | None, cli.Section("run folder"), cli.RUN_DIR]
    resume: Annotated[
        str | None,
        "--resume RUN",
        "continue a run from its newest checkpoint, in its folder; --timesteps N then trains N env steps more, and "
        "schedules such as lin_X lead to the new end; --set KEY=VALUE changes settings such as learning_rate; "
        "default: none",
    ]
    record: Annotated[
        str | None,
        "--record DIR",
        "record complete episodes, as one Minari dataset for each policy, in a new or empty folder; with --resume, "
        "also in that of the same run; default: nothing is recorded",
    ]
    record_limit: Annotated[
        str | None, "--record-limit SIZE", "stop recording at this size, such as 2GB; default: no limit"
    ]
    checkpoint_every: Annotated[int | None, cli.Setting("checkpoints.every")]
    track: Annotated[Sequence[str] | None, cli.Setting("track")]
    print_config: Annotated[
        bool,
        cli.Section("output"),
        "--print-config",
        "print all settings as YAML, which --hparams takes, and do not train; default: train",
        cli.NEW_RUN,
    ]
    agents: Annotated[
        int | None,
        "--agents N",
        "number of agents to show, the best and the worst ones, or all; default: 8",
        _most_agents,
    ] = 8
    quiet: Annotated[bool, "--quiet", "print the run folder alone; default: off"]

    def chosen_seeds(self) -> list[int]:
        """Return the seeds that `--seeds` asks for.

        Raises:
            ConfigError: another option does not go with it.
        """
        given = (self.resume, self.print_config, self.ray.ray, self.runners, self.record)
        others = dict(zip(("resume", "print-config", "ray", "runners", "record"), given, strict=True))
        others |= {"seed": self.seed} if isinstance(self.seeds, list) else {}
        for name, value in others.items():
            if value not in (None, False):
                raise ConfigError(f"--seeds and --{name} are given; accepted: one of them", key="seeds")
        if isinstance(self.seeds, list):
            return list(self.seeds)
        first = self.seed or 0
        return list(range(first, first + (self.seeds or 1)))

    def runner_settings(self) -> "AnyRunners | None":
        """Return which processes roll out the shards; None without `--ray` and `--runners`.

        Raises:
            ConfigError: see `RayOptions.settings`.
        """
        from marl_sb3.extensions.remote.ray import either

        ray = self.ray.settings(self.runners)
        return either(ray, self.runners if ray is None else None)

    def recording(self) -> "Recording | None":
        """Return what `--record` asks for.

        Raises:
            ConfigError: there is a limit for no recording, or the limit is no size.
        """
        if self.record is None and self.record_limit is not None:
            raise ConfigError("--record-limit needs --record DIR", key="record_limit")
        if self.record is None:
            return None
        from marl_sb3.callbacks import RecordEpisodes

        return partial(RecordEpisodes, self.record, self.record_limit)

    def config(self) -> "TrainConfig":
        """Return the configuration of a new run."""
        from marl_sb3.runs.settings import load_config

        env = self.env_option.named(self.env)
        hparams: str | dict[str, Any] | None = self.hparams
        if self.external is not None:
            if env is not None or hparams is not None:
                words = "--external is given with an env or --hparams; accepted: one of them"
                raise ConfigError(words, key="external")
            from marl_sb3.envs.external import read_external

            env, hparams = EXTERNAL, read_external(self.external)
        given = {
            "stop": cli.stop_conditions(self.stop),
            "callbacks": self.callbacks or None,
            "league.opponents": list(self.against) or None,
            "league.self_play": 0.0 if self.against else None,
            "trust_file": self.trust_file,
            **cli.settings_in(self),
        }
        return load_config(env, self.algo, hparams, cli.assignments("--set", self.settings), **given)


# --- The command -----------------------------------------------------------------------------------------------------


@contextmanager
def _clients_served(options: TrainOptions, run: "Run") -> Iterator[None]:
    """Serve the clients that step the env of the run, if clients do."""
    if run.config.env != EXTERNAL:
        options.server.require_none("--external SPEC")
        yield
        return
    from marl_sb3.runs.folder import undone_on_error

    with undone_on_error(run.close):
        require_extra("--external", "serve")
        from marl_sb3.tools.serving.external import external_server

        server = external_server(run.algorithm, **options.server.settings(EXTERNAL_PORT))
    with server:
        print_text(f"clients connect to {server.address}", stderr=True)
        yield


def _prepare(options: TrainOptions) -> "Run":
    if options.resume is not None:
        return _resume(options)
    config, runners = options.config(), options.runner_settings()
    from marl_sb3.runs.start import prepare

    record = options.recording()
    return prepare(config, options.run_dir, trust_pickle=options.trust_pickle, runners=runners, record=record)


def _train_seeds(options: TrainOptions) -> int:
    """Train with several seeds; returns the exit code: 1 if one of them failed."""
    seeds, config = options.chosen_seeds(), options.config()
    from marl_sb3.runs.jobs import SeedRuns

    with without_collections():
        runs = SeedRuns(config, seeds, options.run_dir, trust_pickle=options.trust_pickle)
    if options.quiet:
        runs.execute()
    else:
        from marl_sb3.runs.view import execute_and_show_seeds

        execute_and_show_seeds(runs, options.agents)
    print_text(runs.shown)
    return cli.EXIT_DONE if all(run.is_done for run in runs.runs) else cli.EXIT_FAILED


def _print_config(options: TrainOptions) -> int:
    """Print the configuration that the run would have; returns the exit code."""
    if options.resume is not None:
        cli.require_resumable(options, "a resumed run")
    config, runners = options.config(), options.runner_settings()
    from marl_sb3.runs.files import to_yaml
    from marl_sb3.runs.start import resolve

    print_text(to_yaml(resolve(config, trust_pickle=options.trust_pickle, runners=runners)), end="")
    return cli.EXIT_DONE


def _resume(options: TrainOptions) -> "Run":
    changes: dict[str, Any] = {
        "stop": cli.stop_conditions(options.stop),
        "runners": options.runner_settings(),
        "settings": cli.assignments("--set", options.settings),
        "callbacks": options.callbacks or (),
        **cli.settings_in(options, of_resume=True),
    }
    cli.require_resumable(options, "a resumed run")
    folder, env = cli.found_run(options.resume or ""), options.env_option.named(options.env)
    from marl_sb3.runs.start import resume_run

    timesteps = changes.pop("n_timesteps")
    return resume_run(folder, timesteps, env, record=options.recording(), **changes)


@cli.command("train [ENV] [options]", "Train the agents of an env.", _EPILOG)
def main(options: TrainOptions) -> int:
    """Train, and print the run folder; returns the exit code."""
    if options.seeds is not None:
        return _train_seeds(options)
    with without_collections():
        if options.print_config:
            return _print_config(options)
        run = _prepare(options)
    with _clients_served(options, run):
        if options.quiet:
            from marl_sb3.runs.execution import execute

            execute(run)
        else:
            from marl_sb3.runs.view import execute_and_show

            execute_and_show(run, most_agents=options.agents)
    print_text(run.files.shown)
    return cli.EXIT_INTERRUPTED if run.interrupted else cli.EXIT_DONE
