"""SB3's own callbacks, and those of its documentation: each works, or is refused before any training, naming ours."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpe2.simple_v3
import pettingzoo
import pytest
import sb3_contrib.common.maskable.callbacks
import stable_baselines3.common.callbacks
from stable_baselines3.common import callbacks as stock
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Figure, HParam, TensorBoardOutputFormat
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, make_vec_env
from marl_sb3.core.training.results import ResultLogger
from marl_sb3.errors import ConfigError
from marl_sb3.runs.logs import CsvFormat, JsonLinesFormat

N_ENVS, N_STEPS = 2, 6
SMALL: dict[str, Any] = {"n_steps": N_STEPS, "batch_size": 4, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}}
ITERATION = N_ENVS * N_STEPS  # env steps; the episodes of the toy env have 3


def make(**options: Any) -> MultiAgentAlgorithm:
    return MultiAgentAlgorithm(make_vec_env(ScriptedEnv, n_envs=N_ENVS), seed=0, device="cpu", **{**SMALL, **options})


def rows() -> Any:
    return make_vec_env(ScriptedEnv).as_sb3_vec_env()


class Counting(stock.BaseCallback):
    def _on_step(self) -> bool:
        return True


class Event(stock.EventCallback):
    def _on_step(self) -> bool:
        return self._on_event()


MaskableEval = sb3_contrib.common.maskable.callbacks.MaskableEvalCallback

WORK: dict[str, Callable[[], Any]] = {
    "BaseCallback": Counting,
    "EventCallback": lambda: Event(Counting()),
    "CallbackList": lambda: stock.CallbackList([Counting()]),
    "ConvertCallback": lambda: stock.ConvertCallback(lambda locals_, _: locals_["self"].num_timesteps > 0),
    "EveryNTimesteps": lambda: stock.EveryNTimesteps(4, Counting()),
    "StopTrainingOnMaxEpisodes": lambda: stock.StopTrainingOnMaxEpisodes(max_episodes=1, verbose=1),
    "ProgressBarCallback": stock.ProgressBarCallback,
}
REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "CheckpointCallback": (
        lambda p: stock.CheckpointCallback(1, str(p / "x")),
        "marl_sb3.callbacks.CheckpointCallback",
    ),
    "EvalCallback": (lambda _: stock.EvalCallback(rows()), "marl_sb3.callbacks.EvaluationCallback"),
    "MaskableEvalCallback": (lambda _: MaskableEval(rows()), "marl_sb3.callbacks.EvaluationCallback"),
    "LogEveryNTimesteps": (lambda _: stock.LogEveryNTimesteps(4), r"learn\(log_interval=...\)"),
    "StopTrainingOnRewardThreshold": (
        lambda _: stock.StopTrainingOnRewardThreshold(1.0),
        "marl_sb3.callbacks.StopOnMetric",
    ),
    "StopTrainingOnNoModelImprovement": (
        lambda _: stock.StopTrainingOnNoModelImprovement(1),
        r"a marl_sb3.MultiAgentCallback with on_iteration_end\(result\), which returns False when",
    ),
}


def test_no_callback_of_sb3_is_forgotten() -> None:
    modules = (stable_baselines3.common.callbacks, sb3_contrib.common.maskable.callbacks)
    found = {
        name
        for module in modules
        for name, each in vars(module).items()
        if inspect.isclass(each) and issubclass(each, stock.BaseCallback)
    }
    assert found == {*WORK, *REFUSED}


@pytest.mark.filterwarnings("ignore::tqdm.TqdmExperimentalWarning")
@pytest.mark.parametrize("name", WORK)
def test_callbacks_of_sb3_that_work(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    algorithm, callback = make(), WORK[name]()
    algorithm.learn(ITERATION, callback=callback, tb_log_name="mine")
    stopped = name == "StopTrainingOnMaxEpisodes"
    assert algorithm.num_timesteps == (3 * N_ENVS if stopped else ITERATION)
    assert callback.n_calls == (3 if stopped else N_STEPS)
    child = getattr(callback, "callback", None)
    if isinstance(child, Counting):
        assert child.n_calls == (3 if name == "EveryNTimesteps" else N_STEPS)
    assert ("the mine model reached max_episodes=1" in capsys.readouterr().out) == stopped


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("nested", [False, True])
def test_callbacks_of_sb3_that_are_refused_name_ours(name: str, nested: bool, tmp_path: Path) -> None:
    make_callback, instead = REFUSED[name]
    callback = make_callback(tmp_path)
    algorithm = make()
    with pytest.raises(ConfigError, match=rf"SB3's {name} does not work on a MultiAgentAlgorithm; use {instead}"):
        algorithm.learn(ITERATION, callback=[Counting(), stock.CallbackList([callback])] if nested else callback)
    assert algorithm.num_timesteps == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (Counting, r"Counting'>; accepted: SB3 callbacks, .*; did you mean Counting\(...\)\?"),
        ([Counting(), print], "callback is or contains <built-in function print>; accepted: SB3 callbacks"),
        ("checkpoint", "callback is or contains 'checkpoint'"),
    ],
)
def test_what_is_no_callback_is_refused(callback: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make().learn(ITERATION, callback=callback)


def with_method(base: type, name: str) -> Any:
    return type("Ported", (base,), {name: lambda self, **_: True, "_on_step": lambda self: True})()


@pytest.mark.parametrize(
    ("base", "name", "message"),
    [
        (MultiAgentCallback, "on_episode_ends", "on_episode_ends, which is never called; did you mean on_episode_end?"),
        (stock.BaseCallback, "_on_trainig_start", "never called; did you mean _on_training_start?"),
        (stock.BaseCallback, "on_update_start", "which only a marl_sb3.MultiAgentCallback has"),
        (
            MultiAgentCallback,
            "on_batch",
            "on_batch, which is never called; accepted: on_checkpoint_loaded, .*, or a name",
        ),
    ],
)
def test_methods_that_look_like_hooks_and_are_never_called_are_refused(base: type, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make().learn(ITERATION, callback=with_method(base, name))
    make().learn(ITERATION, callback=with_method(base, "_on_second_thought"))  # a helper


# --- As in SB3's documentation ---------------------------------------------------------------------------------------


class Documented(stock.BaseCallback):
    """The examples of SB3's page on TensorBoard: hyperparameters, a figure, text through the writer, a number."""

    def _on_training_start(self) -> None:
        policy = next(iter(self.model.policies.values()))
        values = HParam({"algorithm": type(policy).__name__, "gamma": policy.gamma}, {"train/value_loss": 0.0})
        self.logger.record("hparams", values, exclude=("stdout", "log", "json", "csv"))
        formats = self.logger.output_formats
        self.formatter = next(each for each in formats if isinstance(each, TensorBoardOutputFormat))
        self.formatter.writer.add_text("direct", "text", self.num_timesteps)

    def _on_step(self) -> bool:
        self.logger.record("random_value", 0.5)
        if self.n_calls == 3:
            self.logger.dump(self.num_timesteps)  # as the evaluation of one's own may do
        return True

    def _on_rollout_end(self) -> None:
        self.logger.record("picture", Figure(None, close=False), exclude=("tensorboard",))


def test_the_callbacks_of_sb3s_documentation_write_into_a_run(in_tmp: Path) -> None:
    settings = {"n_steps": N_STEPS, "batch_size": 4, "n_epochs": 1}
    run = marl_sb3.train(
        ScriptedEnv, timesteps=ITERATION, n_envs=N_ENVS, seed=1, settings=settings, callback=[Documented()]
    )
    (row,) = [json.loads(line) for line in (run.folder / "result.jsonl").read_text().splitlines()]
    assert (row["iteration"], row["random_value"]) == (1, 0.5)
    assert "hparams" not in row
    assert "picture" not in row
    assert len((run.folder / "progress.csv").read_text().splitlines()) == 2
    marl_sb3.train(ScriptedEnv, resume=run.folder, timesteps=ITERATION)
    assert [json.loads(line)["iteration"] for line in (run.folder / "result.jsonl").read_text().splitlines()] == [1, 2]


def test_what_is_dumped_between_iterations_waits_for_the_next_row(tmp_path: Path) -> None:
    formats = [JsonLinesFormat(tmp_path), CsvFormat(tmp_path)]
    logger = ResultLogger(None, formats)
    for values in ({"mine": 1, "other": 2}, {"mine": 3}):
        for name, value in values.items():
            logger.record(name, value)
        logger.dump()
    for iteration in (1, 2):
        logger.write_result({"iteration": iteration}, step=0)
    logger.close()
    assert [json.loads(line) for line in (tmp_path / "result.jsonl").read_text().splitlines()] == [
        {"mine": 3, "other": 2, "iteration": 1},
        {"iteration": 2},
    ]
    assert (tmp_path / "progress.csv").read_text().splitlines() == ["iteration,mine,other", "1,3,2", "2,,"]


# --- As if it were one of SB3's algorithms ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["learning_rate", "gamma", "get_vec_normalize_env", "dump_logs", "policy", "n_envs"])
def test_what_each_policy_has_of_its_own_is_pointed_to(name: str) -> None:
    algorithm = make()
    with pytest.raises(AttributeError, match=rf"has no '{name}': .*own, algo.policies\['shared'\].{name}"):
        getattr(algorithm, name)
    with pytest.raises(AttributeError, match="MultiAgentAlgorithm has no attribute 'nothing'"):
        _ = algorithm.nothing


@pytest.mark.parametrize(
    ("name", "value"), [("custom_objects", {}), ("print_system_info", True), ("force_reset", True)]
)
def test_arguments_of_sb3s_load_are_refused_in_words(name: str, value: Any, tmp_path: Path) -> None:
    algorithm = make()
    algorithm.save(tmp_path / "saved")
    with pytest.raises(ConfigError, match=rf"'{name}' is an argument of SB3's load: .*; see docs/coming_from/sb3.md"):
        MultiAgentAlgorithm.load(tmp_path / "saved", algorithm.env, **{name: value})


def test_our_callbacks_are_refused_in_words_by_sb3s_algorithms(tmp_path: Path) -> None:
    model = marl_sb3.PPO("MlpPolicy", rows(), n_steps=N_STEPS, batch_size=4)
    with pytest.raises(ConfigError, match="CheckpointCallback is for a MultiAgentAlgorithm, and PPO is SB3's kind"):
        model.learn(ITERATION, callback=marl_sb3.callbacks.CheckpointCallback(tmp_path))


def test_each_training_has_its_folder_for_tensorboard_as_in_sb3(tmp_path: Path) -> None:
    algorithm = make(tensorboard_log=str(tmp_path))
    for again in (True, False, True):
        algorithm.learn(ITERATION, tb_log_name="fast", reset_num_timesteps=again)
    make(tensorboard_log=str(tmp_path)).learn(ITERATION, tb_log_name="slow")
    alone = make(tensorboard_log=str(tmp_path))
    alone.train_iteration()
    alone.train_iteration()
    assert {path.name: len([*path.iterdir()]) for path in tmp_path.iterdir()} == {
        "fast_1": 2, "fast_2": 1, "slow_1": 1, "run_1": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("use", "instead"),
    [
        (VecNormalize, r"take env.as_sb3_vec_env\(\); .* normalize_observations"),
        (lambda env: VecFrameStack(env, 4), "frame_stack"),
        (lambda env: env.env_method("render"), r"env.call\(name, indices, \*arguments\)"),
        (lambda env: env.get_attr("level"), r"env.call\(name, indices\) returns an attribute"),
        (lambda env: env.set_attr("level", 2), r"env.configure\(indices, name=value\)"),
        (lambda env: env.possible_agents, "env.agents has all agents"),
        (lambda env: env.agent_iter(), "plays episodes.*docs/coming_from/pettingzoo.md"),
        (lambda env: env.unwrapped, r"env.call\(name, \[0\]\)"),
        (
            lambda env: MultiAgentAlgorithm(env, **SMALL).set_env(env),
            r"MultiAgentAlgorithm.load\(folder, env\) goes on",
        ),
        (lambda env: MultiAgentAlgorithm(env, **SMALL).save_replay_buffer("x"), r"keep the replay buffers.*sb3.md"),
        (lambda env: MultiAgentAlgorithm(env, **SMALL).ep_info_buffer, "env_runners"),
    ],
)
def test_names_of_sb3_and_pettingzoo_are_hinted_at(use: Callable[[Any], Any], instead: str) -> None:
    env = make_vec_env(ScriptedEnv)
    with pytest.raises(AttributeError, match=instead):
        use(env)
    with pytest.raises(ConfigError, match=r"the envs come first, MultiAgentAlgorithm\(env, policy='MlpPolicy'\)"):
        MultiAgentAlgorithm("MlpPolicy", env)
    assert not hasattr(env, "nothing")
    assert not hasattr(env, "_nothing")


@pytest.mark.parametrize("algorithm", [marl_sb3.PPO, marl_sb3.MaskablePPO, marl_sb3.DQN, marl_sb3.SAC])
def test_a_drop_in_says_what_it_takes_in_place_of_envs_of_several_agents(algorithm: Any) -> None:
    with pytest.raises(ConfigError, match=r"accepted: env.as_sb3_vec_env\(\), or a MultiAgentAlgorithm"):
        algorithm("MlpPolicy", make_vec_env(ScriptedEnv))
    for env in (ScriptedEnv(), pettingzoo.make("aec", "classic/rps-v2"), mpe2.simple_v3, ScriptedEnv, make):
        with pytest.raises(ConfigError, match=r"\(...\).as_sb3_vec_env\(\), in which .*docs/coming_from/pettingzoo.md"):
            algorithm("MlpPolicy", env)


def test_functions_for_one_policy_are_told_what_to_take() -> None:
    algorithm = make()
    with pytest.raises(ConfigError, match=r"take algo.policies\['shared'\] and env.as_sb3_vec_env\(\); .*all policies"):
        evaluate_policy(algorithm, rows(), warn=False)
    mean, _ = evaluate_policy(algorithm.policies["shared"], rows(), warn=False)
    assert isinstance(mean, float)
