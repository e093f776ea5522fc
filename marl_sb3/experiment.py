"""A run, from its configuration to its folder: build, train, write down."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat

from marl_sb3.callbacks import RewardHistogramCallback, StopOnMetric, StopOnSignal
from marl_sb3.callbacks.run_log import CsvFormat, JsonLinesFormat
from marl_sb3.config import TrainConfig, load_config, to_yaml, with_hyperparameters
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.errors import ConfigError
from marl_sb3.learners.callback import MultiAgentCallback
from marl_sb3.learners.hyperparameters import hyperparameter_defaults
from marl_sb3.learners.multi_agent_algorithm import MultiAgentAlgorithm
from marl_sb3.learners.policy_rows import resolve_policies
from marl_sb3.learners.policy_spec import PolicySpec, algorithm_class
from marl_sb3.learners.threads import parallel_updates, start_without_dynamo
from marl_sb3.metrics import Result, info_metrics, require_metric
from marl_sb3.types import AgentID, PolicyID
from marl_sb3.vec_env import MultiAgentVecEnv, make_vec_env
from marl_sb3.vec_env.seeding import fresh_seed

_log = logging.getLogger(__name__)

POLICIES_FOLDER = "policies"


class LastResult(MultiAgentCallback):
    """Keeps the result of the latest iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.result: Result | None = None

    def on_iteration_end(self, result: Result) -> bool:
        """Keep it."""
        self.result = result
        return True


@dataclass
class Run:
    """A training and its folder.

    Attributes:
        folder: the run folder.
        config: the resolved configuration, as in `config.yaml`.
        algorithm: the policies, and everything that trains them.
        result: the metrics of the last iteration; None if none was finished.
        policy_files: the SB3 zip of each policy.
        stopped_by: what ended the run before its last step: a stop condition or a signal, in words.
        interrupted: whether that was a signal.
    """

    folder: Path
    config: TrainConfig
    algorithm: MultiAgentAlgorithm
    result: Result | None = None
    policy_files: Mapping[PolicyID, Path] = field(default_factory=dict)
    stopped_by: str | None = None
    interrupted: bool = False


def prepare(config: TrainConfig, run_dir: str | Path | None = None, factory: EnvFactory | None = None) -> Run:
    """Build everything, check everything, then make the run folder.

    Args:
        config: the configuration; a missing seed is drawn.
        run_dir: the folder; it must be empty or not exist. None: `runs/<env>/<UTC time>-<4 hex>`.
        factory: makes the env, where the id in the configuration is only its name.

    Raises:
        ConfigError: a setting does not fit; nothing has been written then.
    """
    config = _resolved(config)
    _check_device(config)
    torch.set_num_threads(config.n_threads)
    start_without_dynamo()
    folder = _free_folder(config.env, run_dir)
    env = make_vec_env(factory or config.env, config.n_envs, config.seed, config.vectorizer, **config.env_kwargs)
    try:
        algorithm = _build_algorithm(config, env)
        for metric in config.stop:
            require_metric(metric, algorithm.metric_names())
        text = to_yaml(config)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(text, encoding="utf-8")
    except BaseException:
        env.close()
        raise
    return Run(folder, config, algorithm)


def execute(run: Run, callbacks: Sequence[BaseCallback] = ()) -> Run:
    """Train a prepared run to its end, its stop condition, or a signal; then save its policies.

    What was learned is saved also if the training fails. The env is closed.
    """
    last, stop = LastResult(), StopOnMetric(run.config.stop)
    with ExitStack() as cleanup:
        cleanup.callback(run.algorithm.env.close)
        signals = cleanup.enter_context(StopOnSignal())
        _log_to_folder(run, cleanup)
        try:
            run.algorithm.learn(
                run.config.n_timesteps, callback=[last, stop, signals, RewardHistogramCallback(), *callbacks]
            )
        finally:
            run.result = last.result
            if last.result is not None and run.algorithm.is_finite():
                run.policy_files = _save_policies(run)
            elif last.result is not None:
                _log.warning("the policies are not saved: their weights are not finite")
    run.interrupted = signals.received is not None
    run.stopped_by = signals.received or stop.reached
    return run


def train(
    env: str | EnvFactory | None = None,
    *,
    policies: str | Mapping[PolicyID, Mapping[str, Any]] | None = None,
    algo: str | None = None,
    timesteps: int | None = None,
    n_envs: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    hparams: str | Path | None = None,
    stop: Mapping[str, float] | None = None,
    vectorizer: str | None = None,
    device: str | None = None,
    run_dir: str | Path | None = None,
    callback: Sequence[BaseCallback] = (),
) -> Run:
    """What `python -m marl_sb3.train` does, without its display.

    Like the command it sets PyTorch's number of threads in this process, to `n_threads` (1 unless set).

    Args:
        env: an env id, or a factory of a `ParallelEnv`; None takes the only env in `hparams`.
        policies: `shared`, `per_agent`, or by policy id `{"agents": [...], ...settings}`.
        algo: name of the algorithm.
        timesteps: env steps to train for.
        n_envs: envs that step together.
        seed: run seed; None draws one, which `config.yaml` tells.
        settings: single settings by key, as after `--set`: `{"learning_rate": 1e-4, "env.height": 6}`.
        hparams: a file of settings, instead of the shipped preset.
        stop: value by metric; training ends when one is reached.
        vectorizer: see `make_vec_env`.
        device: as in SB3.
        run_dir: the run folder; None: a new one below `runs`.
        callback: more callbacks.

    Raises:
        ConfigError: a setting is wrong; nothing has been written then.
        EnvError: the env broke the `ParallelEnv` contract.
    """
    name, factory = (env, None) if env is None or isinstance(env, str) else (_factory_name(env), env)
    config = load_config(
        name,
        algo,
        hparams,
        settings,
        policies=policies,
        n_timesteps=timesteps,
        n_envs=n_envs,
        seed=seed,
        stop=stop,
        vectorizer=vectorizer,
        device=device,
    )
    return execute(prepare(config, run_dir, factory), callback)


def _factory_name(factory: EnvFactory) -> str:
    return f"{getattr(factory, '__module__', 'factory')}:{getattr(factory, '__qualname__', type(factory).__name__)}"


def _resolved(config: TrainConfig) -> TrainConfig:
    """With a seed, and with SB3's defaults spelt out: the run can be repeated after they have changed."""
    seed = fresh_seed() if config.seed is None else config.seed
    try:
        defaults = hyperparameter_defaults(algorithm_class(config.algo))
    except ConfigError as error:
        raise ConfigError(f"{config.where('algo')}{error}", key="algo") from error
    at_once = config.n_parallel_updates or parallel_updates(config.n_threads)
    # A given value is kept as it was written: `lin_3e-4` says more than a function.
    return with_hyperparameters(
        replace(config, seed=seed, n_parallel_updates=at_once), {**defaults, **config.hyperparameters}
    )


def _check_device(config: TrainConfig) -> None:
    """SB3 would quietly take the CPU where there is no CUDA."""
    kind = config.device.partition(":")[0]
    if kind not in ("auto", "cpu", "cuda"):
        accepted = "auto, cpu, cuda or cuda:N"
        raise ConfigError(f"{config.where('device')}device is {config.device!r}; accepted: {accepted}", key="device")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{config.where('device')}device is {config.device!r}, but torch finds no CUDA", key="device")


def _free_folder(env: str, run_dir: str | Path | None) -> Path:
    if run_dir is None:
        now = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
        return Path("runs") / re.sub(r"[^\w.-]+", "_", env) / f"{now}-{secrets.token_hex(2)}"
    folder = Path(run_dir)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--run-dir: {folder} exists and is not an empty folder", key="run_dir")
    return folder


def _build_algorithm(config: TrainConfig, env: MultiAgentVecEnv) -> MultiAgentAlgorithm:
    try:
        policy_ids = resolve_policies(config.policies, env.agents)
        for policy_id in config.policy_settings:
            if policy_id not in policy_ids:
                raise ConfigError(f"unknown policy {policy_id!r}; accepted: {', '.join(policy_ids)}", key=policy_id)
        return MultiAgentAlgorithm(
            env,
            policies={policy_id: _spec(config, policy_id) for policy_id in policy_ids},
            policy_mapping_fn=_mapping(config),
            policies_to_train=config.policies_to_train,
            n_steps=config.hyperparameters["n_steps"],
            seed=config.seed,
            device=config.device,
            update_path=config.update_path,
            n_threads=config.n_threads,
            n_parallel_updates=config.n_parallel_updates,
            stats_window_size=config.stats_window_size,
            custom_metrics=info_metrics(config.custom_metrics, "custom_metrics"),
        )
    except ConfigError as error:
        raise ConfigError(f"{_source(config, error.key)}{error}", key=error.key) from error


def _source(config: TrainConfig, key: str | None) -> str:
    """Where the setting behind an error came from.

    `pol1` finds what was set for that policy; `pol1.gamma` what was set for it, or else for all policies.
    """
    if not key:
        return ""
    of_policy = next((name for name in config.sources if name.startswith(f"{key}.")), None)
    return config.where(key) or config.where(of_policy) or config.where(key.partition(".")[2])


def _spec(config: TrainConfig, policy_id: PolicyID) -> PolicySpec:
    own = config.own_settings(policy_id)
    algo, policy = own.pop("algo", config.algo), own.pop("policy", config.policy)
    try:
        return PolicySpec(algorithm_class(algo), policy, **{**config.hyperparameters, **own})
    except ConfigError as error:
        if error.key not in own:
            raise
        raise ConfigError(f"policy {policy_id!r}: {error}", key=f"{policy_id}.{error.key}") from error


def _mapping(config: TrainConfig) -> dict[AgentID, PolicyID] | None:
    """Agent -> policy from the `agents` of each policy; None where no policy lists any."""
    if isinstance(config.policies, str):
        return None
    listed = {policy_id: settings["agents"] for policy_id, settings in config.policies.items() if "agents" in settings}
    mapping: dict[AgentID, PolicyID] = {}
    for policy_id, agents in listed.items():
        for agent in agents:
            if agent in mapping:
                raise ConfigError(
                    f"agent {agent!r} is in policies {mapping[agent]!r} and {policy_id!r}", key="policies"
                )
            mapping[agent] = policy_id
    return mapping or None


def _log_to_folder(run: Run, cleanup: ExitStack) -> None:
    formats = [
        JsonLinesFormat(run.folder / "result.jsonl"),
        CsvFormat(run.folder / "progress.csv"),
        TensorBoardOutputFormat(str(run.folder)),
    ]
    for output in formats:
        cleanup.callback(output.close)
    run.algorithm.set_logger(Logger(str(run.folder), formats))


def _save_policies(run: Run) -> dict[PolicyID, Path]:
    """The policies' folder appears whole or not at all."""
    unfinished, folder = run.folder / f"{POLICIES_FOLDER}.new", run.folder / POLICIES_FOLDER
    shutil.rmtree(unfinished, ignore_errors=True)
    paths = run.algorithm.save_policies(unfinished)
    os.replace(unfinished, folder)
    return {policy_id: folder / path.name for policy_id, path in paths.items()}
