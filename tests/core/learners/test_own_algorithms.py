"""Algorithms of the user's own: registered, named on command lines, trained, saved, resumed, evaluated, searched."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch as th
import yaml
from forked import Commands, ForkServer
from gymnasium.spaces import Box, Text, Tuple
from stable_baselines3.common.policies import ActorCriticPolicy

import marl_sb3
from marl_sb3 import AlgorithmInfo, ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env, register_algorithm
from marl_sb3.core.config.algorithms import AlgorithmTable
from marl_sb3.doors import ALGORITHM_TABLES
from marl_sb3.train import main as train
from marl_sb3.wrappers.observations import policy_actions

EXAMPLE = Path(__file__).parents[3] / "examples" / "reinforce.py"
SMALL = "--set n_steps=6 --set n_envs=2"
TRAIN = f"train arena --algo reinforce:REINFORCE {SMALL} --seed 1 --quiet"


@pytest.fixture(scope="module")
def commands(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(EXAMPLE, folder)
    run = Commands(server, folder)
    code, said = run(f"{TRAIN} --timesteps 24 --run-dir run")
    assert code == 0, said
    return run


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 120


@pytest.mark.parametrize(
    "line",
    [
        "evaluate run --episodes 2 --import reinforce",
        "export run --import reinforce",
        f"{TRAIN} --timesteps 24 --set n_shards=2",
        f"train arena --import reinforce --policies per_agent --set agent2.algo=reinforce:REINFORCE {SMALL} "
        "--set batch_size=12 --timesteps 12 --quiet",
        f"tune arena --algo reinforce:REINFORCE {SMALL} --grid baseline_coef=0.1,0.5 --timesteps 12 --workers 2",
        pytest.param(f"{TRAIN} --timesteps 24 --set n_shards=2 --ray --runners 2", marks=pytest.mark.proof),
    ],
)
def test_commands_take_it(line: str, commands: Commands) -> None:
    code, said = commands(line)
    assert code == 0, said


def test_a_resumed_run_equals_an_uninterrupted_one(commands: Commands) -> None:
    assert commands(f"{TRAIN} --timesteps 48 --run-dir whole")[0] == 0
    shutil.copytree(commands.folder / "run", commands.folder / "parts")
    code, said = commands("train --resume parts --timesteps 24 --import reinforce --quiet")
    assert code == 0, said
    whole, parts = (commands.folder / run / "checkpoints" / "ckpt-000004" for run in ("whole", "parts"))
    files = [file for file in whole.glob("*.safetensors") if file.name != "arrays.safetensors"]  # has durations
    assert files
    for file in files:
        assert file.read_bytes() == (parts / file.name).read_bytes(), file.name


@pytest.mark.parametrize(
    "line", ["evaluate run", "export run", "train --resume run", "train --hparams run/config.yaml"]
)
def test_a_file_does_not_import_it(line: str, commands: Commands) -> None:
    code, said = commands(line)
    assert code == 2
    assert "run/config.yaml, arena.algo: algorithm 'reinforce:REINFORCE' is in a module that is not imported" in said
    assert "--import reinforce" in said


def test_the_run_records_its_metrics(commands: Commands) -> None:
    columns = (commands.folder / "run" / "progress.csv").read_text().splitlines()[0].split(",")
    assert {f"learners/shared/{name}" for name in ("policy_loss", "vf_loss", "entropy", "mean_return")} <= {*columns}
    config = yaml.safe_load((commands.folder / "run" / "config.yaml").read_text())["arena"]
    assert (config["algo"], config["hyperparameters"]["baseline_coef"]) == ("reinforce:REINFORCE", 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--algo reinforce:NOTHING", "algorithm 'reinforce:NOTHING' is None; accepted: an AlgorithmInfo"),
        ("--algo reinforce:Reinforce", "is <class .*Reinforce.*>; accepted: an AlgorithmInfo"),
        ("--algo no_such_module:INFO", "algo 'no_such_module:INFO': cannot import 'no_such_module'"),
        ("--algo reinforce:REINFORCE --set baseline_coef=x", "baseline_coef is 'x'; accepted: a number"),
        ("--algo reinforce:REINFORCE --set gamma=2", "gamma is 2; accepted: a number from 0 to 1"),
        ("--algo reinforce:REINFORCE --set clip_range=0.1", "unknown hyperparameter 'clip_range' .*of Reinforce"),
    ],
)
def test_errors_say_what_is_accepted(
    options: str, message: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    assert train(["arena", *shlex.split(options)]) == 2
    assert re.search(message, capsys.readouterr().err)


class Plain:
    """REINFORCE without a baseline, by a class that has nothing of SB3's but its policy."""

    policy_aliases = {"MlpPolicy": ActorCriticPolicy}  # noqa: RUF012

    def __init__(
        self,
        policy: Any,
        env: Any,
        learning_rate: float = 1e-2,
        n_steps: int = 10,
        gamma: float = 0.9,
        policy_kwargs: Any = None,
        seed: int | None = None,
        device: str = "cpu",
        rollout_buffer_class: Any = None,
    ) -> None:
        if seed is not None:
            th.manual_seed(seed)
        self.observation_space, self.action_space, self.n_envs = env.observation_space, env.action_space, env.num_envs
        self.n_steps, self.gamma, self.gae_lambda, self.device = n_steps, gamma, 1.0, th.device("cpu")
        spaces = (self.observation_space, self.action_space)
        self.policy = policy(*spaces, lambda _: learning_rate, **(policy_kwargs or {}))
        self.rollout_buffer = rollout_buffer_class(
            n_steps, *spaces, self.device, gamma=gamma, gae_lambda=1.0, n_envs=self.n_envs
        )

    def train(self) -> None:
        (rollout,) = self.rollout_buffer.get(None)
        _, log_prob, _ = self.policy.evaluate_actions(rollout.observations, rollout.actions)
        loss = -(rollout.returns * log_prob).mean()
        self.policy.optimizer.zero_grad()
        loss.backward()
        self.policy.optimizer.step()
        self.logger.record("train/policy_loss", loss.item())  # type: ignore[attr-defined]

    def predict(self, *arguments: Any, **named: Any) -> Any:
        return self.policy.predict(*arguments, **named)


PLAIN = AlgorithmInfo("plain", Plain)


@pytest.fixture
def plain() -> AlgorithmInfo:
    return register_algorithm(PLAIN)


def test_a_class_that_is_not_derived_from_sb3_trains_and_goes_on_from_a_checkpoint(
    plain: AlgorithmInfo, tmp_path: Path
) -> None:
    specs = {"agent1": PolicySpec(plain, previous_reward=True), "agent2": PolicySpec("ppo", n_steps=10, batch_size=20)}
    algo = MultiAgentAlgorithm(make_vec_env("arena", n_envs=2, seed=0), specs, seed=0)
    algo.learn(40)
    saved = algo.save(tmp_path / "saved")
    algo.learn(40, reset_num_timesteps=False)
    again = MultiAgentAlgorithm.load(saved, env=make_vec_env("arena", n_envs=2, seed=0))
    again.learn(40, reset_num_timesteps=False)
    weights = [each.policies["agent1"].policy.parameters() for each in (algo, again)]
    for one, other in zip(*weights, strict=True):
        assert th.equal(one, other)
    bundle = marl_sb3.load_policies(saved)
    assert type(bundle.policies["agent1"]) is Plain
    assert marl_sb3.evaluate_policies(bundle, make_vec_env("arena", n_envs=2, seed=0), n_episodes=2)
    assert {*bundle.save_policies(tmp_path / "zips")} == {"agent2"}


def test_the_function_trains_it(plain: AlgorithmInfo, in_tmp: Path) -> None:
    run = marl_sb3.train("arena", algo=plain, timesteps=20, n_envs=2, run_dir="run", progress_bar=False)
    assert run.config.algo == "plain"
    assert marl_sb3.load_run("run").policies["shared"].gamma == 0.9  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ("plain", "the algorithm is 'plain'; accepted: an AlgorithmInfo"),
        (AlgorithmInfo("PPO", Plain), "the algorithm 'ppo' is built in; choose another name"),
        (AlgorithmInfo("a b", Plain), "the algorithm's name is 'a b'; accepted: a name such as my_algo"),
        (AlgorithmInfo("mine", 3), "algorithm mine: algorithm is 3; accepted: a class"),  # type: ignore[arg-type]
        (AlgorithmInfo("mine", Plain, learner="x"), "algorithm mine: learner is 'x'; accepted: a class"),
        (AlgorithmInfo("mine", Plain, metrics=["x"]), "algorithm mine: metrics is"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_registered(info: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        register_algorithm(info)


def test_a_name_in_a_checkpoint_imports_nothing() -> None:
    assert "antigravity" not in sys.modules
    with pytest.raises(ConfigError, match="is in a module that is not imported"):
        marl_sb3.core.config.algorithms.saved_class("antigravity:INFO")
    assert "antigravity" not in sys.modules


def test_a_package_of_algorithms_brings_a_form_of_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts, of which the package's own table has no form, as numbers."""
    texts, numbers = Tuple([Text(3)]), Box(0, 1, (3,))
    table = AlgorithmTable([], action_form=lambda space: numbers if space == texts else None)
    monkeypatch.setattr(ALGORITHM_TABLES, "_added", {**ALGORITHM_TABLES.added(), "texts": table})
    assert policy_actions(texts) is numbers
    assert policy_actions(Tuple([numbers])).shape == (3,)
    assert policy_actions(numbers) is numbers
