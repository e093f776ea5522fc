"""Hooks of callbacks: every moment, the episode at hand, and trajectories that are rewritten."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_trainings import are_equal, same_weights, weights
from stable_baselines3.common.callbacks import CallbackList
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, RunningEpisode, Trajectory, make_vec_env
from marl_sb3.callbacks import CheckpointCallback, EvaluationCallback
from marl_sb3.core.training.runner import LocalRunner
from marl_sb3.core.vec_env.interface import Health
from marl_sb3.errors import ConfigError, HookError
from marl_sb3.train import main

SCRIPT = {"a": (3, "terminated"), "b": (2, "truncated")}
TINY: Mapping[str, Any] = {"n_steps": 8, "batch_size": 8, "n_epochs": 1, "device": "cpu", "seed": 1}


def make_env(**more: Any) -> ScriptedEnv:
    return ScriptedEnv(SCRIPT, {"a": [1, 2, 4], "b": [8, 16]}, **more)


def algorithm(callback: Any = None, steps: int = 16, n_envs: int = 2, **settings: Any) -> MultiAgentAlgorithm:
    given = settings if "n_steps" in settings else {**TINY, **settings}
    made = MultiAgentAlgorithm(make_vec_env(make_env, n_envs, seed=3), **{"device": "cpu", "seed": 1, **given})
    return made if callback is None else made.learn(steps, callback)


def run_in(folder: Path, env: Any = make_env, timesteps: int = 64, n_envs: int = 2, **more: Any) -> marl_sb3.Run:
    settings = {"n_steps": 8, "batch_size": 8, **more.pop("settings", {})}
    return marl_sb3.train(
        env, timesteps=timesteps, n_envs=n_envs, seed=1, settings=settings, run_dir=folder, progress_bar=False, **more
    )


# --- Every moment -----------------------------------------------------------------------------------------------------

MOMENTS = [
    *("_init_callback", "on_envs_created", "on_episode_start", "on_rollout_start", "on_episode_step"),
    *("on_episode_end", "on_trajectory", "on_rollout_end", "on_update_start", "on_evaluation_start"),
    *("on_evaluation_end", "on_iteration_end", "on_checkpoint_saved"),
]


class Hears(MultiAgentCallback):
    """Notes each hook that is called."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name, self.heard = name, list[str]()


def _hearing(hook: str) -> Any:
    def heard(self: Hears, *arguments: Any) -> Any:
        self.heard.append(f"{self.name}{hook}")
        return True if hook == "on_iteration_end" else None

    return heard


for _hook in [*MOMENTS, "on_checkpoint_loaded"]:
    setattr(Hears, f"_{_hook}" if _hook.startswith("on_rollout") else _hook, _hearing(_hook))


def test_every_moment_is_heard_in_its_order(tmp_path: Path) -> None:
    hears = Hears()
    evaluation = EvaluationCallback(lambda: make_vec_env(make_env), interval=1, duration=1)
    trained = algorithm([hears, evaluation, CheckpointCallback(tmp_path, every=1)], policies="shared")
    first = list(dict.fromkeys(hears.heard))
    assert [name for name in MOMENTS if name not in first] == []
    assert first == MOMENTS
    episodes = trained.parts.counters.episodes
    assert hears.heard.count("on_episode_end") == episodes == 4  # 2 envs, 8 steps, episodes of 3
    assert hears.heard.count("on_episode_start") == 2 + episodes
    assert hears.heard.count("on_episode_step") == 16
    assert "on_checkpoint_loaded" not in hears.heard
    resumed = MultiAgentAlgorithm.load(tmp_path, make_vec_env(make_env, 2, seed=3), device="cpu")
    resumed.learn(16, again := Hears(), reset_num_timesteps=False)
    assert again.heard.count("on_checkpoint_loaded") == 1


def test_several_callbacks_are_called_in_the_order_of_the_list() -> None:
    heard: list[str] = []
    several = [Hears("1 "), Hears("2 "), Hears("3 ")]
    for each in several:
        each.heard = heard
    algorithm([several[0], CallbackList([several[1]]), several[2]])
    for hook in ("on_episode_start", "on_episode_end", "on_trajectory", "on_update_start", "on_iteration_end"):
        named = [name for name in heard if name.endswith(hook)]
        assert named[:6] == [f"{number} {hook}" for number in (1, 2, 3, 1, 2, 3)][: len(named)]


def test_workers_that_are_replaced_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(MultiAgentCallback):
        restarts = 0

        def on_workers_restarted(self, health: Any) -> None:
            self.restarts = health.num_worker_restarts

    made = algorithm()
    told, health = Told(), iter([Health(1, 0), Health(1, 2)])
    monkeypatch.setattr(LocalRunner, "health", property(lambda self: next(health, Health(1, 2))))
    made.learn(16, told)
    assert told.restarts == 2


# --- Episodes ---------------------------------------------------------------------------------------------------------


class Sees(MultiAgentCallback):
    """Writes down what an episode of env 0 shows."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_episode_start(self, episode: RunningEpisode) -> None:
        if episode.env_index == 0:
            self.seen.append(("start", episode.id, episode.length, *self.shown(episode)))
        episode.user_data["paid"] = []

    def on_episode_step(self, episode: RunningEpisode) -> None:
        episode.user_data["paid"].append(episode.reward("a"))
        if episode.env_index == 0:
            self.seen.append(("step", episode.id, episode.length, *self.shown(episode)))

    def on_episode_end(self, episode: RunningEpisode) -> None:
        episode.custom_metrics["paid_to_a"] = sum(episode.user_data["paid"]) + episode.env_index
        episode.hist_data["paid_to_a"] = episode.user_data["paid"]
        episode.media["film"] = np.full((2, 4, 6, 3), episode.env_index, np.uint8)

    @staticmethod
    def shown(episode: RunningEpisode) -> tuple[Any, ...]:
        observed = episode.observation("b")
        acted = [episode.action(agent) is not None for agent in ("a", "b")]
        return None if observed is None else observed.tolist(), acted, episode.reward("b"), dict(episode.agent_returns)


def test_the_episode_at_hand() -> None:
    sees = Sees()
    algorithm(sees)
    # b sees [2, the episode, the step]; it is truncated by its second action and then waits for a.
    assert sees.seen[:5] == [
        ("start", "0-1", 0, [2.0, 1.0, 0.0], [False, False], None, {}),
        ("step", "0-1", 1, [2.0, 1.0, 1.0], [True, True], 8.0, {"a": 1.0, "b": 8.0}),
        ("step", "0-1", 2, [2.0, 1.0, 2.0], [True, True], 16.0, {"a": 3.0, "b": 24.0}),
        ("step", "0-1", 3, None, [True, False], 0.0, {"a": 7.0, "b": 24.0}),
        ("start", "0-2", 0, [2.0, 2.0, 0.0], [False, False], None, {}),
    ]


def test_metrics_of_hooks_are_logged_and_resumed(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run", timesteps=32, callback=[Sees()])
    lines = [json.loads(line) for line in (tmp_path / "run/result.jsonl").read_text().splitlines()]
    metrics = lines[-1]["env_runners"]["custom_metrics"]
    assert {name: metrics[f"paid_to_a_{name}"] for name in ("mean", "min", "max")} == {"mean": 7.5, "min": 7, "max": 8}
    assert lines[0]["env_runners"]["hist_stats"]["paid_to_a"] == [1.0, 2.0, 4.0] * 4
    assert sorted(path.name for path in (tmp_path / "run/media").iterdir()) == ["film-000001.gif", "film-000002.gif"]
    loaded = MultiAgentAlgorithm.load(run.folder, make_vec_env(make_env, 2, seed=3), device="cpu")
    assert loaded.tracker.summary()["custom_metrics"] == metrics


@pytest.mark.parametrize(
    ("where", "value", "accepted"),
    [
        *(("custom_metrics", value, "a finite number") for value in (float("nan"), "many", [1, 2])),
        ("media", np.zeros((4, 6, 3), np.uint8), r"\(T, H, W, 3\) of uint8"),
        ("media", [], r"\(T, H, W, 3\) of uint8"),
        ("media", np.zeros((2, 0, 0, 3), np.uint8), r"\(T, H, W, 3\) of uint8"),
        ("media", [np.zeros((4, 6, 3), np.uint8), np.zeros((5, 6, 3), np.uint8)], r"\(T, H, W, 3\) of uint8"),
        *(
            ("hist_data", value, "a list of finite numbers")
            for value in (5, ["a"], [[1.0, 2.0]], [[1], []], [math.nan])
        ),
    ],
)
def test_what_no_log_can_hold_is_refused(where: str, value: Any, accepted: str) -> None:
    class Wrong(MultiAgentCallback):
        def on_episode_end(self, episode: RunningEpisode) -> None:
            getattr(episode, where)["wrong"] = value

    with pytest.raises(HookError, match=rf"{where}\['wrong'\] is .*; accepted: {accepted}"):
        algorithm(Wrong())


# --- By name ----------------------------------------------------------------------------------------------------------

NAMED = """
from marl_sb3 import MultiAgentCallback

class Says(MultiAgentCallback):
    def __init__(self, word="hello"):
        super().__init__()
        self.word = word

    def on_episode_end(self, episode):
        episode.custom_metrics["letters"] = len(self.word)
"""


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "named_hooks.py").write_text(NAMED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def letters(run: str, of: str = "max") -> Any:
    last = json.loads(Path(run, "result.jsonl").read_text().splitlines()[-1])
    return last["env_runners"]["custom_metrics"].get(f"letters_{of}")


def test_callbacks_are_named_by_options_and_files_and_never_by_run_folders(
    in_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hparams = in_folder / "mine.yml"
    hparams.write_text("arena: {n_envs: 4, n_steps: 100, callbacks: [{named_hooks:Says: {word: abc}}]}")
    short = ["--timesteps", "400", "--quiet"]
    named = ["--callback", "named_hooks:Says"]
    assert main(["arena", "--hparams", str(hparams), *named, "--run-dir", "file", *short]) == 0
    assert letters("file") == 3
    options = ["--set", "n_envs=4", "--set", "n_steps=100", "--callback", "named_hooks:Says"]
    assert main(["arena", *options, "--run-dir", "option", *short]) == 0
    assert letters("option") == 5
    assert main(["--resume", "file", *short]) == 0
    words = "the run had callbacks that a run folder cannot import; to have them, add --callback named_hooks:Says"
    assert words in caplog.text
    caplog.clear()
    assert main(["--resume", "option", *short, "--callback", "named_hooks:Says"]) == 0
    assert [each for each in caplog.messages if not each.startswith("rollouts: ")] == []
    assert letters("option") == 5


CODE_OF_FILES = {
    "env": "THEIRS:make: {n_envs: 4}",
    "algo": "arena: {n_envs: 4, algo: 'THEIRS:MINE'}",
    "algo_of_one": "arena: {policies: {shared: {agents: [agent1, agent2], algo: 'THEIRS:MINE'}}}",
    "callbacks": "arena: {callbacks: [{THEIRS:Says: {word: abc}}]}",
    "evaluation": "arena: {evaluation: {interval: 1, function: 'THEIRS:never'}}",
}


@pytest.mark.parametrize("what", CODE_OF_FILES)
def test_a_file_alone_imports_no_code_unless_the_user_trusts_it(
    what: str, in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marl_sb3.core.envs.registry._imports", [])  # which runners import, too
    module = f"theirs_{what}"
    Path(f"{module}.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    Path("theirs.yml").write_text(CODE_OF_FILES[what].replace("THEIRS", module))
    line = ["--hparams", "theirs.yml", "--run-dir", "run", "--quiet"]
    assert main(line) == 2
    said = capsys.readouterr().err
    assert f"{module}:" in said
    assert "--trust-file" in said
    with pytest.raises(ConfigError, match="trust_file=True"):
        marl_sb3.train(hparams="theirs.yml", run_dir="run", progress_bar=False)
    assert not Path("ran").exists()
    assert main([*line, "--trust-file"]) == 2  # the module has nothing of these names
    assert Path("ran").exists()
    assert not Path("run").exists()


def test_two_callbacks_of_one_class_are_resumed_with_the_arguments_of_each(
    in_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = "callbacks: [{named_hooks:Says: {word: ab}}, {named_hooks:Says: {word: abcd}}]"
    (in_folder / "two.yml").write_text(f"arena: {{n_envs: 4, n_steps: 100, {both}}}")
    short = ["--timesteps", "400", "--quiet"]
    named = ["--callback", "named_hooks:Says"]
    assert main(["--hparams", "two.yml", "--trust-file", "--run-dir", "two", *short]) == 0
    assert main(["--resume", "two", *short, *named]) == 0
    assert letters("two", "min") == 2
    assert caplog.text.count("--callback named_hooks:Says") == 1  # one of the two is missing
    caplog.clear()
    assert main(["--resume", "two", *short, *named, *named]) == 0
    assert [each for each in caplog.messages if not each.startswith("rollouts: ")] == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nope:A", "--callback: callback 'nope:A': cannot import 'nope': No module named 'nope'"),
        ("named_hooks:B", "named_hooks has no class 'B' that is a callback; accepted: a subclass of"),
        ("subprocess:Popen", "subprocess has no class 'Popen' that is a callback"),
        ("named_hooks", "accepted: MODULE:CLASS, the name of a callback's class"),
        ("stable_baselines3.common.callbacks:EvalCallback", "cannot be made: TypeError"),
    ],
)
def test_other_names_are_refused(given: str, words: str, in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["arena", "--callback", given, "--run-dir", "run"]) == 2
    assert words in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_hook_that_raises_is_named_with_its_place(tmp_path: Path) -> None:
    class Raises(MultiAgentCallback):
        def on_episode_step(self, episode: RunningEpisode) -> None:
            if self.num_timesteps > 20:
                raise KeyError("lost")

    with pytest.raises(HookError, match=r"Raises\.on_episode_step\(\), episode 0-4 \(env 0\), step 3: KeyError"):
        run_in(tmp_path / "run", settings={"checkpoints.every": 0}, callback=[Raises()])
    assert "lost" in (tmp_path / "run/traceback.txt").read_text()
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["ckpt-000001"]


# --- Trajectories -----------------------------------------------------------------------------------------------------


class Keeps(MultiAgentCallback):
    """Keeps the trajectories of env 0, and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Trajectory] = []

    def on_trajectory(self, trajectory: Trajectory) -> None:
        assert len(trajectory) == len(trajectory.rewards) == len(trajectory.infos) == len(trajectory.steps)
        if trajectory.env_index == 0:
            list(trajectory.others)
            self.kept.append(trajectory)


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo"])
def test_trajectories_of_rollouts(algo: str) -> None:
    keeps = Keeps()
    trained = algorithm(keeps, policies={"shared": PolicySpec(algo)})
    assert same_weights(trained, algorithm(policies={"shared": PolicySpec(algo)}).learn(16))
    of_a = [each for each in keeps.kept if each.agent == "a"]
    assert [each.steps.tolist() for each in of_a] == [[0, 1, 2], [3, 4, 5], [6, 7]]  # a rollout of 8 steps
    assert [each.rewards.tolist() for each in of_a] == [[1, 2, 4], [1, 2, 4], [1, 2]]
    assert [(each.has_ended, each.truncated) for each in of_a] == [(True, False), (True, False), (False, False)]
    of_b = [each for each in keeps.kept if each.agent == "b"]
    assert [each.steps.tolist() for each in of_b] == [[0, 1], [3, 4], [6, 7]]
    assert [(each.has_ended, each.truncated) for each in of_b] == [(True, True)] * 3
    other = of_a[0].others["b"]
    assert other.rewards.tolist() == [8, 16]
    assert other.observations.tolist() == [[2, 1, 0], [2, 1, 1]]
    assert other.actions.tolist() == of_b[0].actions.reshape(-1).tolist()
    np.testing.assert_allclose(other.log_probs, of_b[0].log_probs)
    with pytest.raises(KeyError):
        of_a[0].others["a"]


def test_trajectories_of_replay_buffers_are_whole_episodes() -> None:
    keeps = Keeps()
    spec = PolicySpec("dqn", buffer_size=100, learning_starts=4, train_freq=1)
    trained = algorithm(keeps, 16, policies={"shared": spec}, n_steps=4)
    of_a = [each for each in keeps.kept if each.agent == "a"]
    assert [each.steps.tolist() for each in of_a] == [[0, 1, 2], [3, 4, 5]]
    assert [each.others["b"].rewards.tolist() for each in of_a] == [[8, 16]] * 2
    buffer = trained.policies["shared"].replay_buffer
    assert buffer.num_transitions == 2 * (2 * 3 + 3 * 2)  # of two envs; the third episode of a goes on


class TeamReward(MultiAgentCallback):
    """Each agent gets what the other one is paid in the episode, with its last transition."""

    def on_trajectory(self, trajectory: Trajectory) -> None:
        trajectory.rewards[-1] += sum(other.rewards.sum() for other in trajectory.others.values())


class Drops(MultiAgentCallback):
    def __init__(self, steps: list[int]) -> None:
        super().__init__()
        self.steps = steps

    def on_trajectory(self, trajectory: Trajectory) -> None:
        trajectory.keep[[step for step in self.steps if step < len(trajectory)]] = False


def returns_after(callback: Any, agents: str) -> tuple[Any, Any]:
    """Returns and `acted` of the rollout of env 0, (8,) each, where values are 0, gamma is 0.5 and lambda 1."""
    made = algorithm(policies="per_agent", gamma=0.5, gae_lambda=1.0, learning_rate=0.0)
    for each in made.policies.values():
        for parameter in each.policy.value_net.parameters():
            parameter.data.zero_()
    made.learn(16, callback)
    buffer = made.policies[agents].rollout_buffer
    return buffer.returns[:, 0].tolist(), buffer.acted[:, 0].tolist()


def test_returns_are_those_of_the_rewritten_rewards() -> None:
    without, _ = returns_after(Keeps(), "a")
    assert without == [1 + 0.5 * 2 + 0.25 * 4, 2 + 0.5 * 4, 4] * 2 + [1 + 0.5 * 2, 2]
    with_team, _ = returns_after(TeamReward(), "a")  # b is paid 24 in an episode, within the rollout's last part too
    assert with_team == [1 + 0.5 * 2 + 0.25 * 28, 2 + 0.5 * 28, 28] * 2 + [1 + 0.5 * 26, 26]


def test_transitions_that_are_dropped_are_not_learned_from() -> None:
    # The return of one before a dropped one goes on with the value that the dropped one began with, which is 0 here.
    returns, acted = returns_after(Drops([1]), "a")
    assert acted == [True, False, True, True, False, True, True, False]
    assert [value for value, kept in zip(returns, acted, strict=True) if kept] == [1, 4, 1, 4, 1]
    returns, acted = returns_after(Drops([0, 1]), "a")  # nothing is left of the part in the rollout's end
    assert acted == [False, False, True, False, False, True, False, False]
    assert [returns[2], returns[5]] == [4, 4]


def test_rewritten_observations_and_values_are_learned_from() -> None:
    class Shifts(MultiAgentCallback):
        def on_trajectory(self, trajectory: Trajectory) -> None:
            before = trajectory.values_of(trajectory.observations)
            np.testing.assert_allclose(before, trajectory.values, rtol=1e-5)
            trajectory.observations += 0.25
            trajectory.values = trajectory.values_of(trajectory.observations)

    class Looks(MultiAgentCallback):
        def on_update_start(self, policy_id: str, batch: Any) -> None:
            self.batch = batch.observations[:, 0].copy(), batch.values[:, 0].copy()

    looks = Looks()
    algorithm([Shifts(), looks])
    assert looks.batch[0][:2].tolist() == [[1.25, 1.25, 0.25], [1.25, 1.25, 1.25]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: setattr(t, "rewards", t.rewards[:-1]),
            r"rewards has shape \(\d,\) after the hook; accepted: \(3,\)",
        ),
        (lambda t: t.rewards.fill(np.nan), "rewards is not finite after the hook"),
        (lambda t: setattr(t, "observations", t.observations[1:]), r"observations has shape \(2, 3\) after the hook"),
        (
            lambda t: setattr(t, "observations", t.observations[:, 1:]),
            r".* \(3, 2\) after the hook; accepted: \(3, 3\)",
        ),
        (lambda t: setattr(t, "rewards", None), r"rewards has shape \(\) after the hook; accepted: \(3,\)"),
        (lambda t: setattr(t, "rewards", t.rewards.astype(complex)), "rewards is of complex"),
        (lambda t: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda t: t.actions.fill(0), "actions are others after the hook; accepted: those that were played"),
        (lambda t: setattr(t, "actions", None), "actions are others after the hook"),
        (lambda t: setattr(t, "log_probs", t.log_probs + 1), "log_probs are others after the hook"),
    ],
)
def test_a_rewriting_hook_that_is_wrong_is_named(change: Any, words: str) -> None:
    class Wrong(MultiAgentCallback):
        def on_trajectory(self, trajectory: Trajectory) -> None:
            change(trajectory)

    with pytest.raises(
        HookError, match=rf"Wrong\.on_trajectory\(\), policy 'shared', agent 'a', env 0, steps 0 to 2: {words}"
    ):
        algorithm(Wrong())


# --- Errors and states ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["complete_result", "on_iteration_end", "on_iteration_logged", "get_state"])
def test_an_error_between_iterations_names_the_hook(hook: str) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("gone")

    callback = MultiAgentCallback()
    setattr(callback, hook, fails)
    with pytest.raises(HookError, match=rf"MultiAgentCallback\.{hook}\(\): KeyError: 'gone'"):
        algorithm(callback)


def test_a_state_that_is_no_mapping_is_refused_at_the_start() -> None:
    class Listed(MultiAgentCallback):
        def get_state(self) -> Any:
            return [1, 2]

    with pytest.raises(ConfigError, match=r"Listed\.get_state\(\) does not return a mapping of names to plain data"):
        algorithm(Listed())


def test_a_callback_that_is_not_set_up_is_named() -> None:
    class Hasty(MultiAgentCallback):
        def __init__(self) -> None:
            self.mine = 1

    with pytest.raises(ConfigError, match=r"callback Hasty is not set up; accepted: .* super\(\).__init__\(\)"):
        algorithm(Hasty())


def test_no_numbers_make_no_histogram(tmp_path: Path) -> None:
    class Empty(MultiAgentCallback):
        def on_episode_end(self, episode: RunningEpisode) -> None:
            episode.hist_data["none"] = []

    run = run_in(tmp_path / "run", timesteps=8, n_envs=1, callback=Empty())
    assert "hist_stats" not in run.result["env_runners"]


class Counts(MultiAgentCallback):
    """Counts the steps of each episode since its start hook."""

    def __init__(self, name: str = "x") -> None:
        super().__init__()
        self.name, self.starts, self.ends, self.total = name, 0, 0, 0

    def on_episode_start(self, episode: RunningEpisode) -> None:
        episode.user_data["before"] = episode.length
        self.starts += 1

    def on_episode_step(self, episode: RunningEpisode) -> None:
        assert episode.length > episode.user_data["before"]
        self.total += 1

    def on_episode_end(self, episode: RunningEpisode) -> None:
        assert episode.length == 3
        self.ends += 1

    def get_state(self) -> dict[str, Any]:
        return {"total": self.total}

    def set_state(self, state: Any) -> None:
        self.total = state["total"]


def test_an_episode_that_a_checkpoint_interrupts_has_its_start_hook_again(tmp_path: Path) -> None:
    made = algorithm(first := Counts(), steps=8)
    made.save(tmp_path / "saved")
    resumed = MultiAgentAlgorithm.load(tmp_path / "saved", made.env, device="cpu")
    resumed.learn(16, counts := Counts(), reset_num_timesteps=False)
    assert (counts.total, counts.starts) == (first.total + 16, counts.ends + 2)


class Remembers(MultiAgentCallback):
    """Adds up what an episode pays in its `user_data`, where a start hook puts the sums."""

    def __init__(self, more: Any = None) -> None:
        super().__init__()
        self.more, self.ended = more, list[Any]()

    def on_episode_start(self, episode: RunningEpisode) -> None:
        episode.user_data.update(paid=[], sums={"a": 0.0}, array=np.zeros(2))
        if self.more is not None:
            episode.user_data["more"] = self.more

    def on_episode_step(self, episode: RunningEpisode) -> None:
        episode.user_data["paid"].append(episode.reward("agent1"))
        episode.user_data["sums"]["a"] += episode.reward("agent1")
        episode.user_data["array"] += 1
        episode.custom_metrics["so_far"] = episode.custom_metrics.get("so_far", 0) + 1

    def on_episode_end(self, episode: RunningEpisode) -> None:
        data = episode.user_data
        so_far = episode.custom_metrics["so_far"]
        self.ended.append((episode.id, data["paid"], data["sums"], data["array"].tolist(), so_far))


def in_arena(where: Path | None = None) -> MultiAgentAlgorithm:
    env = make_vec_env("arena", 2, seed=3, max_timesteps=5)
    return MultiAgentAlgorithm(env, **TINY) if where is None else MultiAgentAlgorithm.load(where, env, device="cpu")


def test_what_hooks_keep_in_an_episode_is_in_checkpoints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole, first, second = Remembers(), Remembers(), Remembers()
    in_arena().learn(48, whole)
    in_arena().learn(16, first).save(tmp_path / "saved")  # 8 steps of each env, in episodes of 5
    in_arena(tmp_path / "saved").learn(32, second, reset_num_timesteps=False)
    assert first.ended + second.ended == whole.ended
    assert [len(each[1]) for each in whole.ended] == [5] * 8
    assert "inexact" not in caplog.text


def test_what_no_checkpoint_can_keep_of_an_episode_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = in_arena().learn(16, Remembers(more={1, 2}))
    made.save(tmp_path / "one")
    made.save(tmp_path / "two")
    assert caplog.text.count("inexact: checkpoints are without user_data['more'] of episodes, such as {1, 2}") == 1
    again = Remembers(more={1, 2})
    in_arena(tmp_path / "two").learn(16, again, reset_num_timesteps=False)
    assert [len(each[1]) for each in again.ended] == [5] * 4
    assert again.ended[0][0] == "0-2"


# --- Shards -----------------------------------------------------------------------------------------------------------


def test_trajectories_are_rewritten_in_shards(tmp_path: Path) -> None:
    rewriting = {"callback": [TeamReward(), Drops([1, 29])]}
    here, in_processes, plain = (
        weights(run_in(tmp_path / name, "arena", n_envs=4, settings={"n_shards": 2}, **more).algorithm)
        for name, more in {"here": rewriting, "in processes": {**rewriting, "runners": 2}, "plain": {}}.items()
    )
    assert are_equal(here, in_processes)
    assert not are_equal(here, plain)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_rewritten_trajectories_are_the_same_with_every_layout(algo: str, tmp_path: Path) -> None:
    def trained(name: str, **layout: Any) -> Any:
        settings = {"n_steps": 50, "batch_size": 50} if algo == "ppo" else {"learning_starts": 50, "train_freq": 10}
        hooks = [TeamReward(), Drops([1, 29])]
        how = {"algo": algo, "settings": {**settings, "env.max_timesteps": 30}, "callback": hooks, **layout}
        return weights(run_in(tmp_path / name, "arena", 800, 4, **how).algorithm)

    batched = trained("batched")
    for layout in ({"vectorizer": "sync"}, {"n_workers": 2}):
        other = trained(next(iter(layout)), **layout)
        assert are_equal(batched, other), layout


def test_hooks_of_steps_are_refused_over_shards(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Sees\.on_episode_start\(\) needs every step as it is taken"):
        run_in(tmp_path / "run", "arena", n_envs=4, settings={"n_shards": 2}, callback=[Sees()])
