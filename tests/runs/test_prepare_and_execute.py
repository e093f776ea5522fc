"""A run from its configuration to its folder."""

from __future__ import annotations

import csv
import errno
import json
import os
from pathlib import Path

import pytest
import stable_baselines3
import torch as th
from small_runs import assert_same_runs
from small_trainings import same_weights, weights
from stable_baselines3.common.callbacks import BaseCallback
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3.core.metrics.names import flatten
from marl_sb3.errors import ConfigError, EnvError
from marl_sb3.export import main as export_command
from marl_sb3.results.result_log import read_results
from marl_sb3.runs.run import Run
from marl_sb3.runs.settings import load_config
from marl_sb3.runs.start import prepare
from marl_sb3.train import main as train_command

TINY = {"n_steps": 10, "batch_size": 20, "n_epochs": 1, "env.max_timesteps": 7}


def tiny(timesteps: int = 60, settings: dict | None = None, **options: object) -> Run:
    return marl_sb3.train("arena", timesteps=timesteps, n_envs=2, settings={**TINY, **(settings or {})}, **options)


def test_run_folder_has_every_file_of_the_contract(in_tmp: Path) -> None:
    run = tiny(seed=1)
    assert run.folder.parent == in_tmp / "runs/arena"
    names = {path.name for path in run.folder.iterdir()}
    assert {"config.yaml", "result.jsonl", "progress.csv", "policies"} <= names
    assert any(name.startswith("events.out.tfevents.") for name in names)
    assert len(read_results(run.folder)) == 3
    assert read_results(run.folder)[-1] == json.loads(json.dumps(run.result))


def test_csv_has_the_metrics_of_the_json_lines(in_tmp: Path) -> None:
    run = tiny(seed=1)
    with (run.folder / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, result in zip(rows, read_results(run.folder), strict=True):
        expected = {name: "" if value is None else str(value) for name, value in flatten(result).items()}
        assert row == expected


def test_config_of_a_run_repeats_it_bit_for_bit(in_tmp: Path) -> None:
    first = tiny(policies="per_agent", settings={"agent2.learning_rate": "lin_1e-3", "agent1.gamma": 0.9})
    again = marl_sb3.train(hparams=first.folder / "config.yaml")
    assert again.config == first.config
    assert again.config.seed is not None
    assert_same_runs(str(first.folder), str(again.folder))


def test_another_seed_is_another_run(in_tmp: Path) -> None:
    one, other = tiny(seed=1), tiny(seed=2)
    assert not th.equal(*(next(iter(weights(run.algorithm).values())) for run in (one, other)))


def test_config_spells_out_the_defaults_of_sb3(in_tmp: Path) -> None:
    run = tiny(seed=1)
    text = (run.folder / "config.yaml").read_text()
    assert "max_grad_norm: 0.5" in text
    assert "clip_range_vf: null" in text


def test_saved_policies_are_those_trained_and_stock_sb3_opens_them(in_tmp: Path) -> None:
    run = tiny(policies="per_agent", seed=1)
    assert set(run.policy_files) == {"agent1", "agent2"}
    for policy_id, path in run.policy_files.items():
        loaded = stable_baselines3.PPO.load(path, device="cpu")
        for name, value in loaded.policy.state_dict().items():
            assert th.equal(value, weights(run.algorithm)[f"{policy_id}/{name}"])


def test_stop_condition_ends_the_run_and_says_so(in_tmp: Path) -> None:
    run = tiny(timesteps=1000, stop={"iteration": 2}, seed=1)
    assert len(read_results(run.folder)) == 2
    assert run.stopped_by == "iteration is 2, at least 2"
    assert not run.interrupted


def test_mapping_with_agents_listed_trains_those_policies(in_tmp: Path) -> None:
    run = tiny(policies={"p": {"agents": ["agent2"], "gamma": 0.5}, "q": {"agents": ["agent1"]}}, seed=1)
    assert run.algorithm.policy_of == {"agent1": "q", "agent2": "p"}
    assert [run.algorithm.policies[p].gamma for p in ("p", "q")] == [0.5, 0.8]  # the preset's
    again = marl_sb3.train(hparams=run.folder / "config.yaml")
    assert same_weights(run.algorithm, again.algorithm)


def test_policies_to_train_leaves_the_others_as_they_were(in_tmp: Path) -> None:
    settings = {"policies_to_train": ["agent1"]}
    short, long = (tiny(n, settings, policies="per_agent", seed=1) for n in (20, 60))
    for name, value in weights(short.algorithm).items():
        assert th.equal(value, weights(long.algorithm)[name]) == name.startswith("agent2/")


def test_a_factory_trains_under_its_name(in_tmp: Path) -> None:
    run = marl_sb3.train(ScriptedEnv, timesteps=20, n_envs=2, seed=1, settings={"n_steps": 10, "batch_size": 8})
    assert run.config.env == "toy_envs:ScriptedEnv"
    assert run.folder.parent == in_tmp / "runs/toy_envs_ScriptedEnv"
    again = marl_sb3.train("toy_envs:ScriptedEnv", hparams=run.folder / "config.yaml")
    assert same_weights(run.algorithm, again.algorithm)


def test_nothing_is_imported_because_a_file_says_so(in_tmp: Path) -> None:
    (in_tmp / "mine.yml").write_text("antigravity:fly: {n_envs: 2}\n")
    with pytest.raises(ConfigError, match=r"mine\.yml wants to import antigravity:fly: if you trust"):
        marl_sb3.train(hparams="mine.yml")


def test_custom_metrics_can_be_named_in_the_configuration(in_tmp: Path) -> None:
    metrics = {"last_step": {"key": "step", "agent": "a", "reduce": "last"}}
    settings = {"n_steps": 10, "batch_size": 8, "custom_metrics": metrics}
    run = marl_sb3.train(ScriptedEnv, timesteps=20, n_envs=2, seed=1, settings=settings)
    assert run.result is not None
    assert run.result["env_runners"]["custom_metrics"]["last_step_mean"] == 3.0


def test_what_a_callback_records_is_in_every_log(in_tmp: Path) -> None:
    class Recorder(marl_sb3.MultiAgentCallback):
        def on_iteration_end(self, result: dict) -> bool:
            self.logger.record("mine/number", 7.5)
            return True

    run = tiny(seed=1, callback=[Recorder()])
    assert read_results(run.folder)[0]["mine"] == {"number": 7.5}
    assert "mine/number" in (run.folder / "progress.csv").read_text().splitlines()[0]


class StepCounter(BaseCallback):
    steps = 0

    def _on_step(self) -> bool:
        self.steps += 1
        return True


AS_CALLBACK = {
    "one": lambda each: each,
    "list": lambda each: [each],
    "function": lambda each: lambda *_: each._on_step(),
}


@pytest.mark.parametrize("kind", AS_CALLBACK)
def test_callbacks_are_one_or_a_list_or_a_function(in_tmp: Path, kind: str) -> None:
    counter = StepCounter()
    tiny(timesteps=20, callback=AS_CALLBACK[kind](counter))
    assert counter.steps == 10


REFUSED = [
    ({"env": "arenaa"}, "unknown env 'arenaa'; did you mean arena?"),
    ({"algo": "poo"}, "--algo: unknown algorithm 'poo'; accepted: ppo"),
    ({"settings": {"learning_rte": 1}}, "--set learning_rte: unknown hyperparameter 'learning_rte'"),
    ({"settings": {"batch_size": 1.5}}, "--set batch_size: batch_size is 1.5; accepted: an integer of at least 2"),
    ({"settings": {"lr": -1}}, "--set lr: learning_rate is -1; accepted: a number from 0"),
    ({"settings": {"lr": 1e-3, "learning_rate": 1e-3}}, "lr and learning_rate are both given, but are two names of"),
    ({"settings": {"kl_target": 0.01}}, "RLlib's kl_target has no counterpart here; SB3's PPO has no KL"),
    ({"settings": {"env.height": 0}}, "height must be an integer >= 1; received 0"),
    ({"settings": {"env.hieght": 3}}, "unknown env argument 'hieght'"),
    ({"settings": {"pol9.gamma": 0.5}}, "--set pol9.gamma: unknown policy 'pol9'; accepted: shared"),
    ({"settings": {"model.fcnet_hidden": [8]}}, "'fcnet_hidden' in model is unknown; did you mean fcnet_hiddens?"),
    ({"settings": {"training.gamma": 0.5}}, "RLlib's training has no counterpart here; give its entries alone"),
    ({"settings": {"shared.gamma": 5}}, "--set shared.gamma: policy 'shared': gamma is 5; accepted"),
    ({"settings": {"shared.n_steps": 0}}, "--set shared.n_steps: policy 'shared': n_steps is 0; accepted"),
    ({"stop": {"env_runners/episode_retrun_mean": 1}}, "did you mean env_runners/episode_return_mean"),
    ({"policies": "each"}, "--policies: policies is 'each'; accepted: shared, per_agent or a mapping"),
    ({"policies": {"p": {"agents": ["agent1"]}}}, "leaves out agent 'agent2'"),
    ({"policies": {"p": {"agents": ["agent1", "agent2", "x"]}}}, "names agent 'x'"),
    ({"policies": {"p": {"agents": ["agent1", "agent2"]}, "q": {"agents": ["agent2"]}}}, "is in policies 'p' and 'q'"),
    (
        {"settings": {"evalution.interval": 3}},
        "unknown policy 'evalution'; accepted: shared; or did you mean evaluation.interval?",
    ),
    (
        {"settings": {"normalize_observation": True}},
        "'normalize_observation' of PPO; did you mean normalize_observations",
    ),
    (
        {"settings": {"policy": "CnnPolicy"}},
        "NatureCNN must be used with a gym.spaces.Box observation space, not MultiDiscrete([100 100]); the agents "
        "observe MultiDiscrete([100 100]); accepted for it: policy=auto",
    ),
    ({"settings": {"policies_to_train": ["q"]}}, "--set policies_to_train: policies_to_train names unknown policy 'q'"),
    ({"settings": {"policy": "MlpPolcy"}}, "--set policy: unknown policy 'MlpPolcy'"),
    ({"settings": {"policy_kwargs.activation_fn": "tan"}}, "activation_fn is 'tan'; accepted: tanh"),
    ({"settings": {"policy_kwargs.net_arc": [8]}}, "net_arc"),
    ({"settings": {"custom_metrics": {"x": {"kye": 1}}}}, "custom_metrics"),
    ({"settings": {"custom_metrics": {"x": {"key": "k", "agent": "agnt1"}}}}, "agent is 'agnt1'; the env has agent1"),
    ({"stop": {"evaluation/env_runners/episode_return_mean": 1}}, "; evaluation is off; --set evaluation.interval=10"),
    (
        {"settings": {"checkpoint_metric": "evaluation/x"}},
        "--set checkpoint_metric: unknown metric 'evaluation/x'; e",
    ),
    ({"stop": {1: 2}}, "--stop: the name of a metric is 1; accepted: a string"),
    ({"settings": "lr=1"}, "settings is 'lr=1'; accepted: a mapping of settings to values"),
    ({"settings": {1: 2}}, "settings has the key 1; accepted: strings"),
    ({"hparams": 3}, "hparams is 3; accepted: the path of a settings file, or a mapping"),
    ({"hparams": b"x.yml"}, "hparams is b'x.yml'; accepted: the path of a settings file, or a mapping"),
    ({"run_dir": 3}, "run_dir is 3; accepted: a path, as a string or a pathlib.Path"),
    ({"run_dir": "a\0b"}, "run_dir is 'a\\x00b'; accepted: a path"),
    ({"run_dir": "a\udcff"}, "a\\udcff' is not text in the encoding utf-8; accepted: a path of characters"),
    ({"resume": 3, "env": None, "n_envs": None}, "run is 3; accepted: a path, as a string or a pathlib.Path"),
    ({"resume": "x", "seed": 1}, "record_limit and track are accepted; received n_envs, seed"),
    ({"settings": {"gamma": 0.9}, "gamma": 0.9}, "gamma is given by itself and in settings; accepted: once"),
    ({"timestep": 10}, "unknown hyperparameter 'timestep' of PPO; did you mean n_timesteps?"),
    ({"timesteps": "10q"}, "--timesteps: n_timesteps is '10q'; accepted: an integer of at least 1"),
    ({"seed": "a"}, "--seed: seed is 'a'; accepted: an integer from 0 to 4294967295"),
    (
        {"callback": 3},
        "callback is or contains 3; accepted: SB3 callbacks, such as a MultiAgentCallback, a list",
    ),
    ({"callback": [marl_sb3.MultiAgentCallback]}, "did you mean MultiAgentCallback(...)?"),
    ({"device": "gpu"}, "--device: device is 'gpu'; accepted: auto, cpu, cuda"),
    ({"device": "cpu:1x"}, "--device: device is 'cpu:1x'; accepted: auto, cpu, cuda"),
    ({"device": "auto:1"}, "--device: device is 'auto:1'; accepted: auto, cpu, cuda"),
    ({"device": "cuda:x"}, "--device: device is 'cuda:x'; accepted: auto, cpu, cuda"),
    ({"vectorizer": "fast"}, "--vectorizer: unknown vectorizer 'fast'; accepted: auto, batched, sync, supersuit"),
    ({"env": "toy_envs:np"}, "'np' cannot be called"),
    ({"env": "builtins:dict"}, "builtins:dict makes an object of builtins.dict; accepted: a pettingzoo.ParallelEnv"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_a_wrong_setting_is_refused_and_nothing_is_written(in_tmp: Path, options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        marl_sb3.train(**{"env": "arena", "timesteps": 40, "n_envs": 2, **options})
    assert message in str(caught.value)
    assert list(in_tmp.iterdir()) == []


def test_a_folder_in_use_is_refused(in_tmp: Path) -> None:
    (in_tmp / "mine").mkdir()
    (in_tmp / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="mine exists and is not an empty folder"):
        prepare(load_config("arena"), "mine")
    assert [path.name for path in (in_tmp / "mine").iterdir()] == ["thesis.txt"]


class BreaksLater(ScriptedEnv):
    """Its fourth episode forgets agent b."""

    def step(self, actions: dict) -> tuple:
        observations, *rest = super().step(actions)
        if self.episode == 4:
            observations.pop("b")
        return observations, *rest


def test_an_env_that_breaks_later_ends_the_run_with_whole_files(in_tmp: Path) -> None:
    settings = {"n_steps": 3, "batch_size": 6}
    with pytest.raises(EnvError, match="env 0, episode 3, step 1, agent 'b': observation is missing"):
        marl_sb3.train(BreaksLater, timesteps=100, n_envs=2, settings=settings, run_dir="run", seed=1)
    assert len(read_results(Path("run"))) == 3
    assert stable_baselines3.PPO.load("run/policies/shared.zip", device="cpu").policy is not None
    assert not list(Path("run").glob(".unfinished-*"))


def test_a_closed_run_closes_its_envs(in_tmp: Path) -> None:
    run = marl_sb3.train(ScriptedEnv, timesteps=6, n_envs=2, settings={"n_steps": 3, "batch_size": 6}, seed=1)
    assert run.algorithm.env.call("closed", [0, 1]) == [1, 1]


# What is lost when the end goes wrong


class FailsAtTheEnd(marl_sb3.MultiAgentCallback):
    def _on_training_end(self) -> None:
        raise RuntimeError("my plot failed")


def test_a_callback_that_fails_at_the_end_costs_neither_checkpoint_nor_policies(in_tmp: Path) -> None:
    with pytest.raises(RuntimeError, match="my plot failed"):
        tiny(run_dir="run", seed=1, settings={"checkpoint_every": 0}, callback=[FailsAtTheEnd()])
    assert (in_tmp / "run" / "policies" / "shared.zip").is_file()
    again = marl_sb3.train(resume="run", timesteps=20)
    assert [row["iteration"] for row in read_results(again.folder)] == [1, 2, 3, 4]


def test_policies_that_cannot_be_written_at_the_end_are_in_the_checkpoint(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("marl_sb3.extensions.transfer.sb3_files._write_zip", full)
        settings = [f"--set={name}={value}" for name, value in TINY.items()]
        command = ["arena", "--timesteps=40", "--n-envs=2", "--run-dir=run", "--quiet", *settings]
        assert train_command(command) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: OSError: [Errno 28] No space left on device")
    remedy = "python -m marl_sb3.export run --checkpoint latest writes the policies"
    assert said.endswith(f"; checkpoint ckpt-000002 is complete: {remedy}")
    assert export_command(["run", "--checkpoint", "latest"]) == 0
    assert (in_tmp / "run" / "export" / "sb3" / "shared.zip").is_file()
