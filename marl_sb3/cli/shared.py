"""The options that several commands have, and what they mean."""

import atexit
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from marl_sb3.cli.options import NEW_RUN, Bare, Setting, given_options, one_env, options_of, record
from marl_sb3.core.config.algorithms import canonical_algorithm
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.fast.builtin import ALGORITHMS
from marl_sb3.extensions.hub import local_folder
from marl_sb3.output import print_text

if TYPE_CHECKING:
    from marl_sb3.extensions.remote.ray import RaySettings

# --- Of runs ---------------------------------------------------------------------------------------------------------

RUN = ("RUN", "a run folder; a folder of runs or an env, for its newest run; or hf:OWNER/NAME, a run on the Hub")
CHECKPOINT = (
    "--checkpoint WHICH",
    "best, latest or the number of an iteration; default: best, or latest where the agents' returns oppose each other; "
    "a line of the output says which and why",
)
VERIFY = (
    "--verify KEY",
    "file of the public key, PEM, that must have signed the run folder: a copy of it is verified, then used; default: "
    "it need not be signed",
)
STOCHASTIC = ("--stochastic", "sample the actions, as in training; default: the run's setting")
SEARCH = (
    "--search N",
    "before each action, policies look at N positions in copies of the env; for two players in turns; default: 0",
)
EPISODES_SEED = ("--seed S", "seed of the episodes and of sampled actions; default: derived from the run's seed")


def found_run(path: str, verify: Path | None = None) -> Path:
    """Return the run folder at a path; of a folder of runs, or an env of this name, the newest, which is then printed.

    Args:
        verify: a public key that must have signed the folder; the verified copy of it is there until the process ends.
    """
    from marl_sb3.runs.folder import find_run, find_run_or_env, run_around

    if verify is not None:
        path = str(_kept_copy(path, verify))
    if run_around(path) is not None:  # a checkpoint, or a member of a league
        return Path(path)
    folder = find_run_or_env(path) or find_run(path)
    if path.startswith("hf:"):
        print_text(f"{path}: downloaded to {folder}", stderr=True)
    elif Path(path) != folder:
        print_text(f"newest run in {path}: {folder}", stderr=True)
    return folder


def verified_rival(who: str, verify: Path | None) -> Path | None:
    """Return the verified copy of a rival's folder; None if no key is given, or the rival is code.

    Args:
        who: see `rival_of`.
        verify: see `found_run`.
    """
    return None if verify is None or not local_folder(who).exists() else _kept_copy(who, verify)


def _kept_copy(path: str, key: Path) -> Path:
    """Return where a path leads in a verified copy, which is there until the process ends."""
    from marl_sb3.runs.folder import verified_path

    copy = ExitStack()
    atexit.register(copy.close)
    return copy.enter_context(verified_path(path, key))


# --- Of the env ------------------------------------------------------------------------------------------------------


IMPORT = (
    "--import MODULE",
    "import this module first, such as one of yours that calls register_network or register_env; may be "
    "repeated; default: none",
)


@record
class EnvOptions:
    """`--env` and `--import`, which all commands on envs have; `{words}` is the help text of `--env`."""

    env_option: Annotated[str | None, "--env ENV", "{words}"]
    imports: Annotated[Sequence[str], IMPORT]

    def named(self, positional: str | None = None) -> str | None:
        """Return the env that the command line names; see `one_env`."""
        return one_env(positional, self.env_option)


BesideENV = Annotated[EnvOptions, {"words": "the same as the argument ENV; default: none"}]
OfRun = Annotated[
    EnvOptions,
    {"words": "the run's env; required if it is your own code (package.module:factory); default: as in the run"},
]
OfRunForLog = Annotated[EnvOptions, {"words": "the run's env, for the log (no env is made); default: as in the run"}]

# --- Of settings -----------------------------------------------------------------------------------------------------

ALGO = (
    "--algo NAME",
    f"algorithm: {', '.join([*ALGORITHMS][:-1])} or {[*ALGORITHMS][-1]}; or package.module:NAME of an AlgorithmInfo; "
    "default: ppo",
    canonical_algorithm,
    NEW_RUN,
)
HPARAMS = (
    "--hparams FILE",
    "settings by env id, or a run's config.yaml; default: the preset shipped for the algorithm",
    NEW_RUN,
)
TRUST_FILE = (
    "--trust-file",
    "import all that the file after --hparams names: an env, algorithms, callbacks, a mapping and an evaluation "
    "function of your own; default: only what the command line names",
    NEW_RUN,
)
RUN_DIR = ("--run-dir DIR", "folder of the run, new or empty; default: runs/ENV/TIME-XXXX", NEW_RUN)


def settings_in(record: Any, *, of_resume: bool = False) -> dict[str, Any]:
    """Return the settings that options give, by the names of the parameters of `load_config`.

    Args:
        record: values of options.
        of_resume: only those that a resumed run takes.
    """
    options = [each for each in options_of(type(record)) if not (of_resume and each.is_of_new_run)]
    return {each.name: getattr(record, each.name) for each in options if each.find(Setting)}


def require_resumable(record: Any, what: str) -> None:
    """Refuse the options that only a new run takes.

    Args:
        record: values of options.
        what: what they cannot change.

    Raises:
        ConfigError: one of them is given; the message lists the others.
    """
    options = list(given_options(record))
    for option, value in options:
        if option.is_of_new_run and value is not None and value is not False and value != []:
            accepted = ", ".join(each.flag for each, _ in options if not each.is_of_new_run and each.flag != "--resume")
            raise ConfigError(
                f"{option.flag} cannot change {what}; accepted with --resume: {accepted}", key=option.name
            )


# --- Of servers ------------------------------------------------------------------------------------------------------

TOKEN_VARIABLE = "MARL_SB3_TOKEN"
_LAST_PORT = 65535


@record
class ServerOptions:
    """The options of a server; `{default}` is the port that it listens on by default."""

    host: Annotated[
        str | None,
        "--host HOST",
        "name or address to listen on; one that others reach needs a token; default: 127.0.0.1",
    ]
    port: Annotated[int | None, "--port PORT", "port to listen on; 0: any free one; default: {default}"]
    token: Annotated[
        str | None,
        "--token TOKEN",
        f"what requests have to show as Authorization: Bearer TOKEN; default: ${TOKEN_VARIABLE}, else no token",
    ]
    tls_cert: Annotated[Path | None, "--tls-cert FILE", "PEM file of a certificate, for HTTPS; default: HTTP"]
    tls_key: Annotated[Path | None, "--tls-key FILE", "PEM file of its key; default: in the file of the certificate"]

    def settings(self, port: int) -> dict[str, Any]:
        """Return host, port, token and the files of TLS, as `marl_sb3.tools.serving` takes them.

        Args:
            port: the default.

        Raises:
            ConfigError: there is no such port.
        """
        token = self.token or os.environ.get(TOKEN_VARIABLE) or None
        given = port if self.port is None else self.port
        if not 0 <= given <= _LAST_PORT:
            raise ConfigError(f"--port is {given}; accepted: 0 to {_LAST_PORT}", key="--port")
        listening = {"host": self.host or "127.0.0.1", "port": given, "token": token}
        return {**listening, "tls_cert": self.tls_cert, "tls_key": self.tls_key}

    def require_none(self, accepted: str) -> None:
        """Refuse all of them where nothing is served.

        Args:
            accepted: the option that they go with.
        """
        for option, value in given_options(self):
            if value is not None:
                words = f"{option.flag} is only for servers; accepted: with {accepted}"
                raise ConfigError(words, key=option.flag)


# --- Of Ray ----------------------------------------------------------------------------------------------------------


@record
class RayOptions:
    """The options of Ray; `{what}` says what `--ray` does, `{process}` what a process on Ray is for."""

    ray: Annotated[
        str | None,
        "--ray ADDRESS",
        "{what}; ADDRESS is local (or left out), a Ray of its own on this machine; auto or HOST:PORT, a cluster; "
        "default: no Ray",
        Bare("local"),
    ]
    runner_cpus: Annotated[float | None, "--runner-cpus X", "CPUs that Ray reserves for each {process}; default: 1"]
    ray_runtime_env: Annotated[
        str | None,
        "--ray-runtime-env FILE",
        "YAML or JSON file with Ray's runtime_env: what the envs need on the cluster; default: nothing",
    ]

    def settings(self, runners: int | None = None) -> "RaySettings | None":
        """Return how to use Ray; None without `--ray`.

        Raises:
            ConfigError: an option of Ray is given without `--ray`, or a value is not accepted.
        """
        file, cpus = self.ray_runtime_env, self.runner_cpus
        if self.ray is None:
            for option, value in {"--ray-runtime-env": file, "--runner-cpus": cpus}.items():
                if value is not None:
                    raise ConfigError(f"{option} is only for Ray; accepted: with --ray", key="ray")
            return None
        from marl_sb3.extensions.remote.ray import RaySettings, read_runtime_env

        runtime_env = None if file is None else read_runtime_env(file)
        return RaySettings(self.ray, runners, num_cpus=1.0 if cpus is None else cpus, runtime_env=runtime_env)
