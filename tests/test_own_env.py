"""An env of the user's own, `package.module:factory`, in every command."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_envs import ScriptedEnv

from marl_sb3 import make_vec_env
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.seeding import episode_seed
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.envs.arena.compiled import BatchedArena
from marl_sb3.errors import ConfigError, EnvRaisedError
from marl_sb3.evaluate import main as evaluate_main
from marl_sb3.export import main as export_main
from marl_sb3.tools.tuning.api import prepare_study
from marl_sb3.train import main as train_main
from marl_sb3.tune import main as tune_main

SMALL = ["--set", "n_steps=6", "--set", "batch_size=6", "--set", "n_envs=2", "--timesteps", "12", "--seed", "1"]
TRAIN = ["toy_envs:ScriptedEnv", *SMALL, "--quiet"]
TUNE = ["--trials", "1", "--evaluations", "1", "--evaluation-episodes", "1", "--grid", "gamma=0.9"]
MAINS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train_main,
    "tune": tune_main,
    "evaluate": evaluate_main,
    "export": export_main,
}

LATER = [
    "train --resume run --timesteps 12 --quiet",
    "train --hparams run/config.yaml --quiet",
    "tune --study s",
    "evaluate run --episodes 2",
    "export run",
]


def command(line: str) -> int:
    name, *words = shlex.split(line)
    return MAINS[name](words)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and a study of an env of one's own."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train_main([*TRAIN, "--run-dir", "run"]) == 0
        search = tune_main.values([*TRAIN[:-1], *TUNE, "--study", "s"])
        prepare_study(**search["options"].of_study())
    return folder


@pytest.mark.parametrize("line", [line for line in LATER if not line.startswith("export")])  # which makes no env
def test_the_refusal_of_a_later_command_names_the_option_that_makes_it_work(
    begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    monkeypatch.chdir(begun)
    assert command(line) == 2
    refusal = capsys.readouterr().err
    option = re.search(r"if you trust this code, add (--env \S+) to the command", refusal)
    assert option is not None, refusal
    assert option[1] == "--env toy_envs:ScriptedEnv"
    if line.startswith("tune"):  # running its trials takes a process of its own
        search = tune_main.values([*line.split()[1:], *option[1].split()])
        assert prepare_study(**search["options"].of_study()).search.name == "s"
    else:
        assert command(f"{line} {option[1]}") == 0


@pytest.mark.parametrize("line", [line for line in LATER if "--hparams" not in line and "tune" not in line])
def test_another_env_than_the_files_is_used_with_a_warning(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    shutil.copytree(begun / "run", tmp_path / "run")
    (tmp_path / "moved.py").write_text("from toy_envs import ScriptedEnv as Mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert command(f"{line} --env moved:Mine") == 0
    assert "config.yaml is of env 'toy_envs:ScriptedEnv'; it is used with moved:Mine" in capsys.readouterr().err


def test_a_settings_file_of_another_env_is_refused(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(begun)
    assert command("train --hparams run/config.yaml --quiet --env toy_envs:NoisyEnv") == 2


# --- An env that raises ----------------------------------------------------------------------------------------------


class Broken(ScriptedEnv):
    """Raises in one of its calls: in env 1, in its second episode of three steps."""

    def __init__(self, call: str, env_index: int = 0) -> None:
        super().__init__(env_index=env_index)
        self.call = call

    def look_up(self, call: str) -> None:
        if self.call == call and self.env_index == 1 and self.episode == 2:
            {}["goal"]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        returned = super().reset(seed, options)
        self.look_up("reset")
        return returned

    def step(self, actions: Any) -> Any:
        returned = super().step(actions)
        if self.step_count == 2:
            self.look_up("step")
        return returned

    def render(self) -> Any:
        self.look_up("render")

    def close(self) -> None:
        super().close()
        self.look_up("close")


def play(env: MultiAgentVecEnv, steps: int) -> None:
    """Reset, some steps, and a picture."""
    env.reset()
    for _ in range(steps):
        env.step([np.zeros((env.num_envs, len(env.agents)), dtype=np.int64)])
    env.call("render", [0, env.num_envs - 1])


@pytest.mark.parametrize("vectorizer", ["sync", "supersuit"])
@pytest.mark.parametrize(("call", "step"), [("reset", 0), ("step", 2), ("render", 1)])
def test_what_an_env_raises_is_told_with_env_episode_step_seed_and_line(vectorizer: str, call: str, step: int) -> None:
    env = make_vec_env(Broken, 2, seed=5, vectorizer=vectorizer, call=call)
    with pytest.raises(EnvRaisedError) as caught:
        play(env, 3 + step)
    where = f"env 1, episode 1, step {step}, seed {episode_seed(5, 1, 1)}"
    place = r"\(\S*test_own_env\.py, line \d+, in look_up\)"
    assert re.fullmatch(rf"{where}: {call}\(\) raised KeyError: 'goal' {place}", str(caught.value))
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_env_that_calls_exit_does_not_end_the_process() -> None:
    class WindowClosed(ScriptedEnv):
        def step(self, actions: Any) -> Any:
            sys.exit()

    with pytest.raises(EnvRaisedError, match=r"step 1, seed \d+: step\(\) raised SystemExit \(\S*test_own_env\.py"):
        play(make_vec_env(WindowClosed, 1, seed=5), 1)


@pytest.mark.parametrize("vectorizer", ["sync", "supersuit"])
def test_an_env_that_cannot_be_closed_keeps_no_other_from_being_closed(
    vectorizer: str, caplog: pytest.LogCaptureFixture
) -> None:
    env = make_vec_env(Broken, 3, seed=5, vectorizer=vectorizer, call="close")
    play(env, 4)
    env.close()
    assert env.call("closed", [0, 1, 2]) == [1, 1, 1]
    assert re.match(r"env 1, episode 1, step 1, seed \d+: close\(\) raised KeyError: 'goal' \(", caplog.messages[0])


class BrokenArena(ArenaEnv):
    """An arena whose batched twin raises in one of its calls."""

    broken = ""

    @classmethod
    def make_batched(cls, num_envs: int, **env_kwargs: Any) -> BatchedArena:
        batch = BatchedArena(num_envs, cls(**env_kwargs))

        def fails(*_: Any) -> None:
            raise KeyError("goal")

        setattr(batch, cls.broken, fails)
        return batch


@pytest.mark.parametrize(("call", "step"), [("reset", 0), ("step", 1), ("observations", 0), ("render", 2)])
def test_what_a_batched_env_raises_is_told_with_its_first_env(
    monkeypatch: pytest.MonkeyPatch, call: str, step: int
) -> None:
    monkeypatch.setattr(BrokenArena, "broken", call)
    env = make_vec_env(BrokenArena, 2, seed=5)
    with pytest.raises(EnvRaisedError) as caught:
        play(env, 2)
    batch = "" if call == "render" else r" \(the first of 2 in one batch\)"
    where = rf"env 0, episode 0, step {step}, seed {episode_seed(5, 0, 0)}{batch}"
    assert re.match(rf"{where}: {call}\(\) raised KeyError: 'goal' \(\S*test_own_env\.py, line", str(caught.value))


def test_a_batched_env_that_cannot_be_closed_is_said_to_be_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(BrokenArena, "broken", "close")
    env = make_vec_env(BrokenArena, 2, seed=5)
    env.close()
    env.close()
    assert [message.partition(" raised ")[0] for message in caplog.messages] == [
        "env 0, before its first episode (the first of 2 in one batch): close()"
    ]


def test_a_training_whose_env_raises_keeps_what_was_learned_and_the_traceback(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_tmp / "wall_env.py").write_text(
        "from toy_envs import ScriptedEnv\n"
        "class Env(ScriptedEnv):\n"
        "    def step(self, actions):\n"
        "        if self.episode == 5:\n"
        "            raise KeyError('goal')\n"
        "        return super().step(actions)\n"
    )
    words = ["wall_env:Env", *SMALL[:-4], "--timesteps", "600", "--seed", "1", "--run-dir", "run"]
    words += ["--set", "checkpoint_every=1"]
    assert train_main(words) == 1
    seed = episode_seed(1, 0, 4)
    assert capsys.readouterr().err == (
        f"error: env 0, episode 4, step 1, seed {seed}: step() raised KeyError: 'goal' (wall_env.py, line 5, in step); "
        "traceback: run/traceback.txt\n"
    )
    text = (in_tmp / "run" / "traceback.txt").read_text()
    assert "KeyError: 'goal'" in text
    assert "direct cause" in text
    assert (in_tmp / "run" / "policies" / "shared.zip").is_file()
    assert list((in_tmp / "run" / "checkpoints").glob("ckpt-*"))


class Nameless(ScriptedEnv):
    def __init__(self) -> None:
        super().__init__()
        del self.possible_agents


class Seedless(ScriptedEnv):
    def reset(self, options: Any = None) -> Any:
        return super().reset(None, options)


class Unpublished(ScriptedEnv):
    metadata = None


class Spaceless(ScriptedEnv):
    def action_space(self, agent: str) -> Any:
        return None


class Unlisted(ScriptedEnv):
    def action_space(self, agent: str) -> Any:
        return {"a": self._action_space}[agent]


@pytest.mark.parametrize("vectorizer", ["sync", "supersuit"])
@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Nameless, "the env's possible_agents is None; accepted: a list of agent ids, not empty"),
        (Unpublished, "the env's metadata is None; accepted: a mapping"),
        (Seedless, "the env's reset takes (options: 'Any' = None) -> 'Any': got an unexpected keyword argument 'seed'"),
        (Spaceless, "action_space('a') is None; accepted: a gymnasium space"),
        (Unlisted, "env 0: action_space('b') raised KeyError: 'b' ("),
    ],
)
def test_what_is_no_parallel_env_but_in_name_is_refused_before_its_first_step(
    env: type[ScriptedEnv], words: str, vectorizer: str
) -> None:
    with pytest.raises((ConfigError, EnvRaisedError)) as caught:
        make_vec_env(env, vectorizer=vectorizer)
    assert words in str(caught.value)
