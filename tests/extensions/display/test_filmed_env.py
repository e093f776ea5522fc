"""Filming shows complete episodes of env 0, and changes nothing."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from toy_envs import NoisyEnv, ScriptedEnv

from marl_sb3 import ConfigError, MultiAgentVecEnv, make_vec_env
from marl_sb3.errors import EnvRaisedError, MarlSb3Error
from marl_sb3.extensions.display import filmed_env
from marl_sb3.extensions.display.filmed_env import filming_factory

SCRIPT = {"a": (2, "truncated"), "b": (3, "terminated")}


def filmed(env: Any, n_episodes: int = 1, n_envs: int = 2, **env_kwargs: Any) -> tuple[MultiAgentVecEnv, list[Any]]:
    frames: list[Any] = []
    return make_vec_env(filming_factory(env, frames.append, n_episodes), n_envs, seed=4, **env_kwargs), frames


def play(env: MultiAgentVecEnv, steps: int) -> list[Any]:
    """The rewards and observations of some steps, all agents taking the first action."""
    shown = [env.reset().observations[0]]
    actions = (np.zeros(env.latest.to_act.shape, dtype=np.int64),)
    for _ in range(steps):
        step = env.step(actions)
        shown += [step.rewards, step.observations[0]]
    return shown


@pytest.mark.parametrize(("n_episodes", "steps"), [(1, [0, 1, 2, 3]), (2, [0, 1, 2, 3, 0, 1, 2, 3])])
def test_film_goes_from_the_first_frame_of_an_episode_to_its_last(n_episodes: int, steps: list[int]) -> None:
    env, frames = filmed(ScriptedEnv, n_episodes, script=SCRIPT)
    play(env, 10)
    assert [frame[0, 0, 0] for frame in frames] == steps  # a scripted env shows the number of the step


def test_only_env_0_renders_and_transparency_is_left_out() -> None:
    clear = type("Clear", (ScriptedEnv,), {"render": lambda _: np.zeros((4, 4, 4), np.uint8)})
    env, frames = filmed(clear, n_envs=3)
    env.reset()
    assert frames[0].shape[2] == 3
    assert env.call("render_mode", [0, 1, 2]) == ["rgb_array", None, None]
    assert env.call("env_index", [0, 1, 2]) == [0, 1, 2]


class Drawn(NoisyEnv):
    def __init__(self, plans: Any, env_index: int = 0, render_mode: str | None = None) -> None:
        super().__init__(plans, env_index)
        self.render_mode = render_mode


def test_filmed_episodes_are_those_of_envs_without_a_film() -> None:
    plans = [[(SCRIPT, {}), ({"a": (4, "both"), "b": (1, "truncated")}, {})]] * 2
    env, frames = filmed(Drawn, 2, plans=plans)
    for one, other in zip(play(env, 9), play(make_vec_env(Drawn, 2, seed=4, plans=plans), 9), strict=True):
        assert np.array_equal(one, other)
    assert len(frames) == 4 + 5


def test_the_arena_is_filmed_from_its_first_cell_on() -> None:
    env, frames = filmed("arena", max_timesteps=4, height=3, width=5)
    assert env.metadata["render_fps"] == 10
    play(env, 9)
    assert len(frames) == 5
    assert {(frame[:120].shape, frame.dtype) for frame in frames} == {((120, 200, 3), np.dtype(np.uint8))}


def test_the_arena_has_a_caption_of_step_returns_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = []
    monkeypatch.setattr(
        "marl_sb3.extensions.display.filmed_env.captioned",
        lambda frame, scene, legend: scenes.append((scene.episode, scene.step, dict(scene.returns), legend)),
    )
    env, _ = filmed("arena", 2, n_envs=1, max_timesteps=3)
    rewards = play(env, 4)[1::2]
    assert [scene[:2] for scene in scenes] == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]
    returns = np.cumsum([step[0] for step in rewards[:3]], axis=0)
    assert np.array([list(scene[2].values()) for scene in scenes[:4]]) == pytest.approx(np.array([[0, 0], *returns]))
    assert list(scenes[0][3]) == ["agent1", "agent2", "visited by agent1"]


class Blind(ScriptedEnv):
    def __init__(self, env_index: int = 0) -> None:
        super().__init__()


class OnlyText(ScriptedEnv):
    metadata: ClassVar = {"name": "only_text", "render_modes": ["ansi", "human"]}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Blind, "a video needs an env that takes render_mode='rgb_array': unknown env argument 'render_mode'"),
        (OnlyText, "a video needs render_mode 'rgb_array'; the env has ansi, human"),
        ("arenaa", "unknown env 'arenaa'"),
    ],
)
def test_an_env_that_cannot_be_filmed_is_refused(env: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        filmed(env)


def test_other_wrong_arguments_are_still_those_of_the_env() -> None:
    with pytest.raises(ConfigError, match="unknown env argument 'hieght'") as caught:
        filmed("arena", hieght=3)
    assert "video" not in str(caught.value)


class GymEnv(gymnasium.Env):  # type: ignore[type-arg]
    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        pass


def test_a_gymnasium_env_without_render_modes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry, "Blind-v0", gymnasium.envs.registration.EnvSpec("Blind-v0", GymEnv))
    with pytest.raises(ConfigError, match="a video needs an env that takes render_mode='rgb_array'"):
        filmed("Blind-v0")


@pytest.mark.parametrize("error", [ImportError, DependencyNotInstalled, ModuleNotFoundError, NotImplementedError])
def test_what_an_env_lacks_for_drawing_is_told(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filmed_env, "lacks_display", lambda: True)
    way = "; there is no display" if error in (ImportError, DependencyNotInstalled) else "$"

    class Undrawable(ScriptedEnv):
        def render(self) -> Any:
            raise error("pygame is not installed")

    env, _ = filmed(Undrawable)
    with pytest.raises(ConfigError, match=f"the env cannot render: pygame is not installed{way}"):
        env.reset()


def test_an_env_that_cannot_draw_without_a_display_is_told_how_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asserts(ScriptedEnv):
        def render(self) -> Any:
            raise AssertionError

    env, _ = filmed(Asserts)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EnvRaisedError) as caught:
        env.reset()
    said = str(caught.value)
    assert "the env cannot render: render() raised AssertionError" in said
    assert "at `raise AssertionError`; there is no display: MUJOCO_GL=egl in" in said
    monkeypatch.setenv("DISPLAY", ":0")
    env, _ = filmed(Asserts)
    with pytest.raises(EnvRaisedError) as caught:
        env.reset()
    assert "there is no display" not in str(caught.value)


def test_a_video_that_cannot_be_written_is_not_the_envs_fault() -> None:
    def broken(frame: Any) -> None:
        raise OSError("ffmpeg has ended\n\nFFMPEG COMMAND:\nffmpeg -y ...")  # as imageio says it

    env = make_vec_env(filming_factory(ScriptedEnv, broken, 1))
    with pytest.raises(MarlSb3Error, match=r"^the video cannot be written: ffmpeg has ended$"):
        env.reset()
