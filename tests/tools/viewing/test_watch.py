"""Watching a run: the episodes of evaluations, step by step; what cannot be shown is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from small_runs import start
from toy_envs import ScriptedEnv

from marl_sb3.commands import watch as command
from marl_sb3.core.envs.registry import register_env
from marl_sb3.envs.drawn import EnvWindow
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.evaluation.game import GamePlan
from marl_sb3.evaluation.opponents import Rival
from marl_sb3.evaluation.playing import play
from marl_sb3.evaluation.session import Moment, ViewerLeftError
from marl_sb3.evaluation.viewed_env import View
from marl_sb3.runs.building import make_envs
from marl_sb3.runs.rivals import named_apart
from marl_sb3.runs.run import SavedRun
from marl_sb3.tools.viewing import watching
from marl_sb3.tools.viewing.stages import KeyStage, TerminalStage, WindowStage
from marl_sb3.tools.viewing.watching import PLACES, Watched, watch

pytest.importorskip("pygame")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watch") / "runs" / "arena" / "one"
    start(str(folder), iterations=2, policies="per_agent", settings={"evaluation.deterministic": True}).close()
    shutil.copytree(folder / "checkpoints" / "ckpt-000002", folder / "league" / "agent2@2")
    listed = [{"name": "agent2@2", "policy": "agent2", "iteration": 2, "rating": None}]
    (folder / "league" / "members.json").write_text(json.dumps(listed))
    return folder


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[np.ndarray]]:
    """The pictures that windows show, without any waiting."""
    pictures: list[np.ndarray] = []
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(EnvWindow, "show", lambda _, image: pictures.append(image))
    return pictures


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch, shown: list[np.ndarray]) -> list[tuple[Moment, View]]:
    """What is shown, without any waiting."""
    found: list[tuple[Moment, View]] = []
    for stage in (WindowStage, TerminalStage, KeyStage):
        monkeypatch.setattr(stage, "show", lambda _, *seen: found.append(seen))
    monkeypatch.setattr(KeyStage, "next_command", lambda *_: None)
    monkeypatch.setattr(KeyStage, "hold_s", lambda *_: 0.0)
    return found


def watched(folder: Path, n_episodes: int = 2, options: str = "", **more: Any) -> Watched:
    line = [str(folder), "--seed", "3", "--episodes", str(n_episodes), *options.split()]
    return watch(command.plan_of(command.main.values(line)["options"])[0], "arena", n_episodes, **more)


@pytest.mark.parametrize("options", ["", "--stochastic", "--random"])
def test_the_episodes_are_those_of_evaluations(run: Path, moments: list[tuple[Moment, View]], options: str) -> None:
    saved, acting = SavedRun.open(run), () if options == "--random" else None
    with closing(make_envs(saved.config, n_envs=1)) as env:
        played = play(saved.policies(None, env), env, 2, options != "--stochastic", seed=3, acting=acting)
    found = watched(run, 2, options).played.episodes
    assert [(e.agent_returns, e.length, e.custom) for e in found] == [
        (e.agent_returns, e.length, e.custom) for e in played.episodes
    ]
    assert [(moment.episode, moment.step) for moment, _ in moments] == [(n, step) for n in (1, 2) for step in range(16)]
    assert [view.caption.step for _, view in moments] == [*range(16)] * 2
    ends = [moment.returns for moment, _ in moments if moment.is_over]
    assert ends == [pytest.approx(episode.agent_returns) for episode in played.episodes]
    if options == "--random":
        for agent in ("agent1", "agent2"):
            assert {moment.actions.get(agent) for moment, _ in moments} == {None, 0, 1, 2, 3}


def test_a_window_shows_pictures_with_captions(run: Path, shown: list[np.ndarray]) -> None:
    watched(run, 1, fps=1000.0)
    assert len(shown) == 16
    assert {picture.shape for picture in shown} == {shown[0].shape}
    assert shown[0].shape[0] > 400 == shown[0].shape[1]


@pytest.mark.usefixtures("shown")
@pytest.mark.parametrize("who", ["{run}", "{run}/checkpoints/ckpt-000002", "random"])
def test_two_play_each_other_and_each_episode_has_a_line(
    run: Path, who: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parents[2])
    monkeypatch.setattr(KeyStage, "next_command", lambda *_: None)
    monkeypatch.setattr(KeyStage, "hold_s", lambda *_: 0.0)
    place = run.relative_to(run.parents[2])
    found = watched(place, 3, f"{who.format(run=place)} --stochastic")
    other = {"{run}": "runs/arena/one (2)", "random": "random"}.get(who, "checkpoints/ckpt-000002")
    players = [{"agent1": "runs/arena/one", "agent2": other}, {"agent1": other, "agent2": "runs/arena/one"}]
    assert [episode.policy_of for episode in found.played.episodes] == [players[0], players[1], players[0]]
    lines = capsys.readouterr().out.splitlines()
    starts = [f"episode {number}: returns: {first} " for number, first in [(1, "runs/arena/one"), (2, other)]]
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=False)] == starts
    assert lines[0].endswith("(agent2)")
    found.print("arena")
    printed = capsys.readouterr().out
    theirs = f"{other} (ckpt-000002)" if other.endswith(")") else other
    assert f"arena, ckpt-000002 against {theirs}: 3 complete episodes" in printed
    assert "runs/arena/one as agent2" in printed


def test_rivals_have_names_of_their_own() -> None:
    rivals = [Rival(name, lambda _: "random") for name in ("run", "run", "run (2)", "run (3)", "other")]
    assert [each.name for each in named_apart(rivals, "run (2)")] == [
        "run",
        "run (3)",
        "run (2) (2)",
        "run (3) (2)",
        "other",
    ]


@pytest.mark.usefixtures("moments")
def test_a_member_of_a_league_plays_by_its_own_policy_alone_and_keeps_its_side(run: Path) -> None:
    found = watched(run, 2, str(run / "league" / "agent2@2"))
    assert [episode.policy_of["agent2"] for episode in found.played.episodes] == ["league/agent2@2"] * 2
    assert len(watched(run / "league" / "agent2@2", 1).played.episodes) == 1  # with the others of its time


@pytest.mark.usefixtures("moments")
def test_a_checkpoint_is_watched_by_its_path(run: Path) -> None:
    assert watched(run / "checkpoints" / "ckpt-000002", 1).checkpoint == "ckpt-000002"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{run} {other}", "other is a run of 'waterworld', {run} one of 'arena'; accepted: runs of one env, or"),
        ("{run} nobody", "opponent 'nobody': there is no such path; accepted: a run folder, a checkpoint, a member of"),
        ("{run} {run}/checkpoints", "it is a part of one; did you mean"),
        (
            "{run} {run}/league/agent2@2 --agents agent2",
            "cannot play agent1: no policy of it is for agent agent1, but for agent2",
        ),
        (
            "{run}/league/agent2@2 {run}/league/agent2@2",
            "agent2@2 cannot play agent1: no policy of it is for agent agent1, but for agent2",
        ),
        ("{run} {broken}", "broken: state.json is missing"),
        ("{run} no_such:Thing", "opponent 'no_such:Thing': cannot import 'no_such'"),
        ("{run} {run} --agents agent3", "seats: unknown agent 'agent3'; the env has agent1, agent2"),
        ("{run} {run} --agents agent1,agent2", "which leaves none to an opponent"),
        ("{run} --keep-sides", "--keep-sides needs an opponent; accepted: with WHO"),
        ("{run} {run} --random", "--random takes no actions of policies; an opponent does not go with it"),
        ("{run}/checkpoints/ckpt-000002 --checkpoint 1", "is a checkpoint itself, and checkpoint is 1; accepted: one"),
    ],
)
@pytest.mark.usefixtures("moments")
def test_who_cannot_play_is_refused(run: Path, tmp_path: Path, line: str, words: str) -> None:
    for name in ("other", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "config.yaml").write_text("waterworld: {seed: 1}\n")
    (tmp_path / "broken" / "manifest.json").write_text("{")
    places = {"run": run, **{name: tmp_path / name for name in ("other", "broken")}}
    with pytest.raises((ConfigError, CheckpointError), match=words.format(**places)):
        command.main.function(**command.main.values(line.format(**places).split()))


@pytest.mark.usefixtures("moments")
def test_at_random_no_checkpoint_is_needed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    found = watched(tmp_path, options="--random")
    assert (found.checkpoint, found.played.agents, len(found.played.episodes)) == (None, ("agent1", "agent2"), 2)


def test_who_leaves_has_seen_the_episodes_so_far(
    run: Path,
    moments: list[tuple[Moment, View]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def leave(*_: Any) -> None:
        if (moments[-1][0].episode, moments[-1][0].step) == (2, 4):
            raise ViewerLeftError("left")

    monkeypatch.setattr(WindowStage, "next_command", leave)
    found = watched(run, 5)
    assert len(found.played.episodes) == 1
    found.print("arena")
    printed = capsys.readouterr().out
    assert "arena, ckpt-000002: 1 complete episode\n" in printed
    assert "num_collisions" in printed


def test_the_newest_run_of_an_env_is_found_by_its_name(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parents[2])
    monkeypatch.setattr(watching, "watch", lambda plan, title, *_, **__: pytest.fail(title), raising=False)
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


def test_an_env_with_a_window_of_its_own_shows_itself(moments: list[tuple[Moment, View]]) -> None:
    modes = []

    def make(render_mode: str | None = None) -> OwnWindow:
        modes.append(render_mode)
        return OwnWindow(render_mode=render_mode)

    watch(GamePlan(make, {}, None, seed=1), "own", 1)
    assert modes == [None, "human"]
    assert [(view.caption.step, view.image, view.text) for _, view in moments] == [(n, None, None) for n in range(4)]


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


def test_text_is_shown_in_a_terminal(moments: list[tuple[Moment, View]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "why_no_window", lambda: "no display")
    monkeypatch.setattr(watching, "why_no_terminal", lambda _: None)
    monkeypatch.setitem(PLACES, "terminal", ("ansi",))  # type: ignore[arg-type]
    watch(GamePlan("arena", {"max_timesteps": 2, "height": 1, "width": 2}, None, seed=1), "arena", 1)
    assert [len(view.text or "") for _, view in moments] == [4, 4, 4]
