"""`python -m marl_sb3.imitate`: train the policies of a new run to act as recorded episodes do.

The function `marl_sb3.imitate(...)` of the library is `marl_sb3.runs.imitate.imitate`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from marl_sb3 import cli
from marl_sb3.errors import ConfigError
from marl_sb3.output import print_text
from marl_sb3.runs.schema import TRACKERS
from marl_sb3.startup import without_collections

_EPILOG = """\
DATA is what train --record or evaluate --record wrote: each policy learns the
actions of its agents, whichever policy they had. Or it is the folder of a
Minari dataset of a Gymnasium env.

Policies are cloned, whatever their algorithm. IQL learns from the rewards, too,
by its own losses: see the page on learning from data.

examples
  python -m marl_sb3.imitate recorded --env arena
  python -m marl_sb3.imitate recorded --env arena --policies per_agent --seed 1
  python -m marl_sb3.imitate recorded/agent/data --env Pendulum-v1 --algo sac
  python -m marl_sb3.imitate recorded --env arena --algo iql --epochs 300
  python -m marl_sb3.train arena --init-from RUN      (starts from the clone)

exit codes: 0 done, 1 failed, 2 wrong command line, settings or data, 130
interrupted
"""


@cli.record
class Cloning:
    """The options of `CloningOptions`, whose defaults they have."""

    epochs: Annotated[int | None, "--epochs N", "maximum number of passes over the data; default: 100", cli.NEW_RUN]
    batch_size: Annotated[int | None, "--batch-size N", "transitions in a minibatch; default: 256", cli.NEW_RUN]
    learning_rate: Annotated[float | None, "--learning-rate X", "of Adam; default: 0.001", cli.NEW_RUN]
    validation: Annotated[
        float | None,
        "--validation X",
        "share of the episodes that are not learned from, but decide when to stop; default: 0.1",
        cli.NEW_RUN,
    ]
    patience: Annotated[
        int | None,
        "--patience N",
        "a policy is finished after so many passes without a lower loss on these episodes; default: 10",
        cli.NEW_RUN,
    ]
    entropy_coefficient: Annotated[
        float | None,
        "--entropy-coefficient X",
        "weight of the policy's entropy, which is subtracted from its loss; default: 0",
        cli.NEW_RUN,
    ]


@cli.record
class ImitateOptions:
    """What `imitate` takes."""

    data: Annotated[
        Path | None,
        "DATA",
        "a folder of recorded episodes, or a Minari dataset; with --resume, by default that of the run",
    ]
    env: Annotated[
        cli.EnvOptions,
        cli.Section("what is trained"),
        {"words": "the env that the data are of; default: the one in --hparams"},
    ]
    policies: Annotated[str | None, cli.Setting("policies")]
    algo: Annotated[str | None, cli.ALGO]
    n_envs: Annotated[int | None, cli.Setting("n_envs")]
    seed: Annotated[int | None, cli.Setting("seed")]
    settings: Annotated[
        Sequence[str], "--set KEY=VALUE", "change a setting, as in train; may be repeated; default: none", cli.NEW_RUN
    ]
    hparams: Annotated[str | None, cli.HPARAMS]
    trust_file: Annotated[bool, cli.TRUST_FILE]
    cloning: Annotated[Cloning, cli.Section("how it is trained")]
    device: Annotated[str | None, cli.Setting("device")]
    run_dir: Annotated[str | None, cli.Section("run folder and output"), cli.RUN_DIR]
    resume: Annotated[
        str | None, "--resume RUN", "go on with this cloning, from its newest checkpoint; default: a new run"
    ]
    checkpoint_every: Annotated[int | None, cli.Setting("checkpoints.every")]
    track: Annotated[
        Sequence[str] | None,
        "--track TRACKER",
        f"send metrics, settings and checkpoints to {', '.join(TRACKERS[:-1])} or {TRACKERS[-1]}; may be repeated; "
        "default: none",
        cli.Setting("track"),
    ]
    quiet: Annotated[bool, "--quiet", "print the run folder alone; default: off"]


@cli.command(
    "imitate DATA --env ENV [options] | --resume RUN",
    "Train policies on recorded episodes: cloned, or offline by IQL.",
    _EPILOG,
)
def main(options: ImitateOptions) -> int:
    """Train, and print the run folder; returns the exit code."""
    from marl_sb3.runs.settings import load_config

    env = options.env.named()
    if options.resume is not None:
        cli.require_resumable(options, "an imitate run that is resumed")
        with without_collections():
            from marl_sb3.runs.imitate import resume_clone

        changes = {name: value for name, value in cli.settings_in(options, of_resume=True).items() if value is not None}
        run = resume_clone(options.resume, options.data, env, quiet=options.quiet, **changes)
    elif options.data is None:
        raise ConfigError("DATA is missing; accepted: a folder of recorded episodes, or --resume RUN", key="data")
    else:
        settings = cli.assignments("--set", options.settings)
        given = {"trust_file": options.trust_file, **cli.settings_in(options)}
        config = load_config(env, options.algo, options.hparams, settings, **given)
        with without_collections():  # takes seconds: wrong options are refused before
            from marl_sb3.extensions.data.cloning import CloningOptions
            from marl_sb3.runs.imitate import clone

        cloning = {name: value for name, value in vars(options.cloning).items() if value is not None}
        run = clone(config, options.data, CloningOptions(**cloning), options.run_dir, quiet=options.quiet)
    print_text(run.files.shown)
    return cli.EXIT_INTERRUPTED if run.interrupted else cli.EXIT_DONE
