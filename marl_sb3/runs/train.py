"""`marl_sb3.train(...)`: the command `train` as a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stable_baselines3.common.type_aliases import MaybeCallback

from marl_sb3.callbacks import RecordEpisodes
from marl_sb3.core.config.algorithms import AlgorithmInfo
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.core.learners.spec import named_algorithm
from marl_sb3.core.training.accepted import accepted_callbacks
from marl_sb3.envs.finding import named_factory
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.dialects.names import as_integer
from marl_sb3.extensions.remote.ray import RaySettings, either
from marl_sb3.runs.building import import_algorithms
from marl_sb3.runs.execution import execute
from marl_sb3.runs.files import Hparams
from marl_sb3.runs.run import Run
from marl_sb3.runs.schema import FREE
from marl_sb3.runs.settings import load_config, require_kinds
from marl_sb3.runs.start import prepare, resume_run
from marl_sb3.signals import pass_on
from marl_sb3.stacks import unending_named
from marl_sb3.types import PolicyID


@unending_named()
def train(
    env: str | EnvFactory | None = None,
    *,
    policies: str | Mapping[PolicyID, Mapping[str, Any]] | None = None,
    algo: str | AlgorithmInfo | None = None,
    timesteps: int | str | None = None,
    n_envs: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    hparams: Hparams | None = None,
    trust_file: bool = False,
    stop: Mapping[str, float] | None = None,
    n_workers: int | str | None = None,
    vectorizer: str | None = None,
    device: str | None = None,
    init_from: Sequence[str] | None = None,
    trust_pickle: bool = False,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    callback: MaybeCallback = None,
    progress_bar: bool = True,
    ray: RaySettings | None = None,
    runners: int | None = None,
    record: str | Path | None = None,
    record_limit: int | str | None = None,
    track: str | Sequence[str] | None = None,
    **more_settings: Any,
) -> Run:
    """Train agents, as `python -m marl_sb3.train` does.

    Like the command, this sets the number of PyTorch's threads in the process to the setting `n_threads` (default: 1).

    Args:
        env: an env id, or a factory of a `ParallelEnv`; None takes the only env in `hparams`.
        policies: `shared`, `per_agent`, or by policy id `{"agents": [...], ...settings}`.
        algo: name of the algorithm; or an `AlgorithmInfo`, or the place of one as `package.module:NAME`.
        timesteps: env steps to train for: an integer, or a text such as `"10k"`.
        n_envs: number of envs that step together.
        seed: seed of the run. None: the run draws one and writes it to `config.yaml`.
        settings: single settings by key, as after `--set`: `{"learning_rate": 1e-4, "env.height": 6}`.
        hparams: a file of settings by env id, or a mapping, instead of the shipped preset.
        trust_file: import all code that `hparams` names: its env, algorithms, callbacks, mapping and so on.
        stop: values by metric; the training ends when one metric reaches its value.
        n_workers: number of processes that step the envs, with the same results, or `auto`; see `make_vec_env`.
        vectorizer: see `make_vec_env`.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: CUDA, if there is any, for convolutions and wide layers (512).
        init_from: sources of the initial weights, each as after `--init-from`.
        trust_pickle: allow SB3 zips in `init_from`: reading one may run code.
        run_dir: the run folder; None: a new one below `runs`.
        resume: the folder of a run to continue, for `timesteps` env steps more or to its planned end. Of the other
            arguments only `env`, `settings`, `stop`, `n_workers`, `ray`, `runners`, `callback`, `progress_bar`,
            `record`, `record_limit` and `track` are accepted; `settings` may change what its state does not depend on,
            such as `learning_rate`.
        callback: more callbacks, as `MultiAgentAlgorithm.learn` takes them: one, a list, or a function.
        progress_bar: print what the command prints: the start, the progress (a live view on terminals and in
            notebooks, plain lines elsewhere) and the results. False: nothing is printed.
        ray: how the envs, in `n_shards` shares, are rolled out on Ray; None: not on Ray.
        runners: number of processes of this machine that roll out the envs, in `n_shards` shares; None: this process
            does.
        record: folder in which complete episodes are recorded, as one Minari dataset per policy: new or empty, or
            with `resume` that of the same run; see `RecordEpisodes`. None: nothing is recorded.
        record_limit: size of the recording in bytes, or a text such as `"2GB"`, beyond which nothing is recorded; None:
            no limit.
        track: trackers that get metrics, settings, checkpoints and videos: `wandb`, `mlflow`, `trackio` or
            `tensorboard`, one or several; a resumed run goes on in the same run of each. None: as in `hparams`, else
            none; with `resume`, those of the run.
        more_settings: settings whose keys are names: `learning_rate=1e-4` is `settings={"learning_rate": 1e-4}`.

    Returns:
        The run. A signal (Ctrl-C, SIGTERM, SIGHUP) lets the iteration end and is passed on when all is saved: a handler
        of yours is called, and the run then returned with `interrupted`; without one, see below.

    Raises:
        ConfigError: a setting is wrong; nothing has been written.
        EnvError: the env broke the `ParallelEnv` contract.
        KeyboardInterrupt: Ctrl-C was pressed; the run is saved, and `resume` continues it. SIGTERM and SIGHUP end the
            process.
    """
    require_kinds(hparams, settings)
    callbacks = accepted_callbacks(callback)
    name, factory = named_factory(env)
    n_timesteps = as_integer(timesteps)
    settings, chosen = _together(settings, more_settings), either(ray, runners)
    recording = None if record is None else partial(RecordEpisodes, record, record_limit)
    given: dict[str, Any] = {"policies": policies, "n_envs": n_envs, "seed": seed, "init_from": init_from}
    given |= {"vectorizer": vectorizer, "device": device, "stop": stop, "n_workers": n_workers, "track": track}
    if resume is not None:
        changes = {name: given.pop(name) for name in [*given] if name in {*FREE, "stop"}}
        of_new = {"algo": algo, "hparams": hparams, "trust_file": trust_file or None, "run_dir": run_dir, **given}
        if refused := [argument for argument, value in of_new.items() if value is not None]:
            accepted = "env, timesteps, settings, stop, n_workers, ray, runners, callback, progress_bar, record, "
            accepted += "record_limit and track are accepted"
            raise ConfigError(f"with resume only {accepted}; received {', '.join(refused)}", key="resume")
        run = resume_run(resume, n_timesteps, name, factory, chosen, settings, record=recording, **changes)
    else:
        algo = None if algo is None else named_algorithm(algo)
        if trust_file and hparams is not None:
            import_algorithms(hparams, name)
        config = load_config(name, algo, hparams, settings, n_timesteps=n_timesteps, trust_file=trust_file, **given)
        run = prepare(config, run_dir, factory, trust_pickle=trust_pickle, runners=chosen, record=recording)
    if progress_bar:
        from marl_sb3.runs.view import execute_and_show

        execute_and_show(run, callbacks)
    else:
        execute(run, callbacks)
    pass_on(run.stopped_by if run.interrupted else None)
    return run


def _together(settings: Mapping[str, Any] | None, more: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the settings in the mapping and those given by themselves."""
    if not more:
        return settings
    if "seeds" in more:
        words = "train() trains one run; accepted: seed=S, in a loop over the seeds, or the command train --seeds"
        raise ConfigError(words, key="seeds")
    if twice := more.keys() & (settings or {}).keys():
        raise ConfigError(f"{min(twice)} is given by itself and in settings; accepted: once", key=min(twice))
    return {**(settings or {}), **more}
