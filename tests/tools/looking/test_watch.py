"""Watching a run: the episodes of evaluations, step by step; what cannot be shown is said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from small_runs import start
from toy_envs import ScriptedEnv

from marl_sb3 import watch as command
from marl_sb3.core.envs import register_env
from marl_sb3.envs import EnvWindow
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation import play_episodes
from marl_sb3.runs import SavedRun
from marl_sb3.runs.building import make_envs
from marl_sb3.tools.looking import WatchPlan
from marl_sb3.tools.looking import watch as watching
from marl_sb3.tools.looking.playback import View, ViewerLeftError
from marl_sb3.tools.looking.watch import PLACES, watch

pytest.importorskip("pygame")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watch") / "runs" / "arena" / "one"
    start(str(folder), iterations=2, settings={"evaluation.deterministic": True}).close()
    return folder


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[np.ndarray]]:
    """The pictures that windows show, without any waiting."""
    pictures: list[np.ndarray] = []
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(EnvWindow, "show", lambda _, image: pictures.append(image))
    return pictures


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch, shown: list[np.ndarray]) -> list[View]:
    """What is shown, without any waiting."""
    found: list[View] = []
    monkeypatch.setattr(watching.Playback, "show", lambda _, view: found.append(view))
    return found


def plan_of(folder: Path, n_episodes: int = 2, **options: Any) -> WatchPlan:
    given = command.main.values([str(folder), "--seed", "3", "--episodes", str(n_episodes)])["options"]
    return command.plan_of(replace(given, **options))[0]


@pytest.mark.parametrize("stochastic", [False, True])
def test_the_episodes_are_those_of_evaluations(run: Path, views: list[View], stochastic: bool) -> None:
    saved = SavedRun.open(run)
    with closing(make_envs(saved.config, n_envs=1)) as env:
        played = play_episodes(saved.policies(None, env), env, 2, not stochastic, seed=3)
    watched = watch(plan_of(run, stochastic=stochastic), "arena")
    assert [e.agent_returns for e in watched.evaluation.episodes] == [e.agent_returns for e in played.episodes]
    assert [(view.episode, view.step) for view in views] == [(n, step) for n in (1, 2) for step in range(16)]
    assert [view.step for view in views if view.is_last] == [15, 15]
    ends = [view.returns for view in views if view.is_last]
    assert ends == [pytest.approx(episode.agent_returns) for episode in played.episodes]


def test_a_window_shows_pictures_with_captions(run: Path, shown: list[np.ndarray]) -> None:
    watch(plan_of(run, 1, fps=1000.0), "arena")
    assert len(shown) == 16
    assert {picture.shape for picture in shown} == {shown[0].shape}
    assert shown[0].shape[0] > 400 == shown[0].shape[1]


def test_at_random_no_checkpoint_is_needed(run: Path, views: list[View], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    first, again = (watch(plan_of(tmp_path, random=True), "arena") for _ in range(2))
    assert first.evaluation.returns() == again.evaluation.returns()
    assert (first.checkpoint, first.agents, len(views)) == (None, ("agent1", "agent2"), 64)
    assert first.custom == ["new_fields_discovered", "num_collisions"]


def test_who_leaves_has_seen_the_episodes_so_far(
    run: Path, views: list[View], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(_: Any, view: View) -> None:
        if (view.episode, view.step) == (2, 4):
            raise ViewerLeftError("left")

    monkeypatch.setattr(watching.Playback, "show", leave)
    watched = watch(plan_of(run, 5), "arena")
    assert len(watched.evaluation.episodes) == 1
    watched.print("arena")
    assert "arena, ckpt-000002: 1 complete episode\n" in capsys.readouterr().out


def test_the_newest_run_of_an_env_is_found_by_its_name(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parents[2])
    monkeypatch.setattr(watching, "watch", lambda plan, title: pytest.fail(title))
    with pytest.raises(pytest.fail.Exception, match="arena, runs/arena/one"):
        command.main.function(**command.main.values(["arena"]))
    assert capsys.readouterr().err == "newest run of arena: runs/arena/one\n"


class Silent(ScriptedEnv):
    metadata: ClassVar = {"name": "silent_v0", "render_modes": ["sound"]}


class Odd(ScriptedEnv):
    def render(self) -> Any:
        return [1, 2]


class OwnWindow(ScriptedEnv):
    """Would show itself."""

    metadata: ClassVar = {"name": "own_v0", "render_modes": ["human"]}

    def render(self) -> Any:
        raise AssertionError("it has rendered itself")


def test_an_env_with_a_window_of_its_own_shows_itself(views: list[View], shown: list[np.ndarray]) -> None:
    modes = []

    def make(render_mode: str | None = None) -> OwnWindow:
        modes.append(render_mode)
        return OwnWindow(render_mode=render_mode)

    watch(WatchPlan(make, {}, None, 1, seed=1), "own")
    assert modes == [None, "human"]
    assert [(view.step, view.image, view.text) for view in views] == [(step, None, None) for step in range(4)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "silent --random",
            "the env has no picture: its render modes are sound; accepted: rgb_array, human in a window",
        ),
        ("odd --random", r"render\(\) of the env returned list; accepted: an array \(height, width, 3\) of uint8, or"),
        (
            "nowhere",
            "'nowhere' is no run folder, and runs/nowhere has no run of an env of this name; accepted: a run, or",
        ),
        ("nowhere --random", "unknown env 'nowhere'"),
        ("arena --random --view terminal", "nothing can be shown here: no terminal: standard output is no terminal"),
        ("arena --random --stochastic", "--random takes no actions of policies; --stochastic does not go with it"),
        ("arena --random --episodes 0", "--episodes"),
        ("arena --random --fps nan", "--fps is nan; accepted: 0.1 to 1000"),
    ],
)
def test_what_cannot_be_watched_is_said(
    line: str, words: str, shown: list[np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_env("silent", Silent)
    register_env("odd", Odd)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        command.main.function(**command.main.values(line.split()))


def test_text_is_shown_in_a_terminal(views: list[View], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "why_no_window", lambda: "no display")
    monkeypatch.setattr(watching, "why_no_terminal", lambda _: None)
    monkeypatch.setitem(PLACES, "terminal", ("ansi",))  # type: ignore[arg-type]
    watch(WatchPlan("arena", {"max_timesteps": 2, "height": 1, "width": 2}, None, 1, seed=1), "arena")
    assert [len(view.text or "") for view in views] == [4, 4, 4]
