"""The policies of a run as they were at one of its checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from marl_sb3.config import TrainConfig
from marl_sb3.config.ids import file_names
from marl_sb3.envs.registry import EnvFactory, factory_id
from marl_sb3.learners.bundle import PolicyBundle, read_bundle
from marl_sb3.runs.build import build, check_device, policy_spec, set_up_process
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.run import Run
from marl_sb3.storage.state import StateReader


def load_run(
    folder: str | Path, checkpoint: str = "best", *, env: str | EnvFactory | None = None, device: str = "cpu"
) -> Run:
    """A run that was trained before, with the policies of one of its checkpoints.

    `run.history` is how it went, `run.evaluate()` how well the policies play, `run.policies` are the SB3 algorithms. To
    train on, use `marl_sb3.train(resume=folder)`.

    Args:
        folder: the run folder, or a folder of runs, such as `runs/arena`: the newest.
        checkpoint: whose weights the policies get: `best`, `latest` or the number of an iteration.
        env: the run's env id, or what makes the env; needed where it is code of your own.
        device: where the policies go, whatever they were trained on.

    Raises:
        ConfigError: it is not a run folder, or `env` is needed.
        CheckpointError: there is no such checkpoint, or it is damaged, or does not fit the run's configuration.
    """
    name, factory = (env, None) if env is None or isinstance(env, str) else (factory_id(env), env)
    files = RunFolder.existing(folder)
    results = files.results()
    run = restore(files.path, checkpoint, name, factory, device)
    run.result = results[-1] if results else None
    run.latest_evaluation = next((result for result in reversed(results) if "evaluation" in result), None)
    zips = {policy_id: files.policies / zip_ for policy_id, zip_ in file_names(list(run.policies), ".zip").items()}
    run.policy_files = {policy_id: path for policy_id, path in zips.items() if path.is_file()}
    return run


def restore(
    run_folder: str | Path,
    checkpoint: str = "best",
    env: str | None = None,
    factory: EnvFactory | None = None,
    device: str = "cpu",
) -> Run:
    """The policies of a run as they were at one of its checkpoints, to evaluate or export them.

    Args:
        run_folder: the run.
        checkpoint: `best`, `latest` or the number of an iteration.
        env: the run's env id; needed where it is code of your own.
        factory: makes the env, where the id is only its name.
        device: where the policies go, whatever they were trained on.

    Raises:
        ConfigError: it is not a run folder.
        CheckpointError: there is no such checkpoint, or it is damaged, or does not fit the run's configuration.
    """
    files = RunFolder.existing(run_folder)
    config = replace(files.read_config(env), device=device)
    check_device(config)
    set_up_process(config)
    run = Run(files, config, build(config, factory), factory=factory)
    try:
        # Now, not before the policies are built: a training that is under way removes older checkpoints meanwhile.
        found = files.checkpoints.load(checkpoint)
        run.algorithm.set_weights(found)
        run.checkpoint = found.name
    except BaseException:
        run.algorithm.env.close()
        raise
    return run


def restore_policies(
    run_folder: str | Path, checkpoint: str = "best", env: str | None = None, device: str = "cpu"
) -> tuple[TrainConfig, PolicyBundle]:
    """The configuration of a run, and its policies as they were at one of its checkpoints; no env is made.

    Args:
        run_folder: the run.
        checkpoint: `best`, `latest` or the number of an iteration.
        env: the run's env id; it has to be that of the run, where it is given.
        device: where the policies go, whatever they were trained on.

    Raises:
        ConfigError: it is not a run folder, or is of another env.
        CheckpointError: there is no such checkpoint, or it is damaged, or does not fit the run's configuration.
    """
    files = RunFolder.existing(run_folder)
    config = replace(files.read_config(env, makes_env=False), device=device)
    set_up_process(config)
    found = files.checkpoints.load(checkpoint)
    specs = {
        policy_id: policy_spec(config, policy_id) for policy_id in StateReader(found.state).fields("specs").names()
    }
    return config, read_bundle(found, specs, device)
