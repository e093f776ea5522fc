"""Live episodes: those of evaluations, with persons in them, at a pace, and as pictures and films."""

from __future__ import annotations

import io
import json
import math
import queue
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from films import frames_of_gif
from live_envs import small_run
from PIL import Image

from marl_sb3.errors import ConfigError
from marl_sb3.evaluation import play_episodes
from marl_sb3.runs import SavedRun
from marl_sb3.runs.building import make_envs
from marl_sb3.tools.serving.game import LiveGame
from marl_sb3.tools.serving.http import RequestError
from marl_sb3.tools.serving.live import LiveEpisode, ViewerGoneError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., SavedRun]:
    made: dict[str, SavedRun] = {}

    def run(env: str, **settings: Any) -> SavedRun:
        if env not in made:
            made[env] = small_run(tmp_path_factory.mktemp("run") / "run", env, **settings)
        return made[env]

    return run


@pytest.fixture
def arena(runs: Callable[..., SavedRun]) -> SavedRun:
    return runs("arena", **{"env.max_timesteps": 15})


@pytest.fixture
def game(arena: SavedRun) -> Iterator[LiveGame]:
    with closing(LiveGame(arena)) as game:
        game.begin(seed=3, deterministic=True, checkpoint=None)
        yield game


def returns_of_next(game: LiveGame) -> dict[str, float]:
    """Play to the end of the episode."""
    while not game.is_over:
        game.advance()
    returns = dict(zip(game.env.agents, game.returns.tolist(), strict=True))
    game.advance()
    return returns


# --- Games -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_seed_gives_the_returns_of_evaluations_beside_another_game(arena: SavedRun, deterministic: bool) -> None:
    with closing(make_envs(arena.config, n_envs=1)) as env:
        played = play_episodes(arena.policies(None, env), env, 3, deterministic, seed=3)
    with closing(LiveGame(arena)) as game, closing(LiveGame(arena)) as other:
        game.begin(3, deterministic, None)
        other.begin(4, False, "latest")
        live, others = [], []
        for _ in range(3):
            live.append(returns_of_next(game))
            others.append(returns_of_next(other))  # draws from the same generators of the process
    assert live == [dict(episode.agent_returns) for episode in played.episodes]
    assert others != live


def test_a_person_moves_an_agent_and_the_policies_all_others(game: LiveGame) -> None:
    assert game.shown.scene is not None
    assert game.controls["agent1"].names == ["up", "right", "down", "left"]
    start = game.shown.scene()["cells"]
    game.take("agent1")
    assert game.awaited() == ["agent1"]
    game.act("agent1", 1)
    assert game.awaited() == []
    suggested = game.insight("agent2")
    game.advance()
    scene = game.shown.scene()
    assert scene["cells"][0] == start[0] + 1  # from the upper left corner to the right
    assert game.latest_actions["agent1"] == 1
    assert suggested is not None
    assert game.latest_actions["agent2"] == suggested.action
    assert scene["visited"] == [1]


def test_an_insight_has_the_probabilities_that_the_policy_draws_from(game: LiveGame) -> None:
    found = game.insight("agent1")
    assert found is not None
    observation = {"agent1": np.array([0, 99])}
    expected = game.policies.distribution(observation)["agent1"].distribution.probs[0].tolist()
    np.testing.assert_allclose(found.probabilities[0], expected, rtol=1e-6)
    assert found.value == pytest.approx(float(game.policies.value(observation)["agent1"]))
    assert found.action == int(np.argmax(expected))


@pytest.mark.parametrize(
    ("agent", "action", "words"),
    [
        ("agent1", 4, "the action of agent1 is 4; accepted: one of Discrete"),
        ("agent1", 1.5, "the action of agent1 is 1.5"),
        ("agent1", [1.0], "the action of agent1"),
        ("agent1", math.nan, "the action of agent1 is nan"),
        ("agent1", 1e308, "the action of agent1 is 1e"),
        ("agent2", 1, "nobody has taken over agent2"),
        ("agent3", 1, "nobody has taken over agent3"),
    ],
)
def test_actions_that_are_none_are_refused(game: LiveGame, agent: str, action: Any, words: str) -> None:
    game.take("agent1")
    with pytest.raises(ConfigError, match=words):
        game.act(agent, action)
    assert game.awaited() == ["agent1"]


def test_a_person_plays_a_game_with_turns_and_forbidden_moves(runs: Callable[..., SavedRun]) -> None:
    with closing(LiveGame(runs("classic/tictactoe-v3", algo="maskable_ppo"))) as game:
        game.begin(0, True, None)
        game.take("player_1")
        game.act("player_1", 4)
        game.advance()
        assert game.awaited() == []  # it is the policy's turn
        game.advance()
        game.forget_choices()
        assert game.awaited() == ["player_1"]
        mask = game.mask("player_1")
        assert mask is not None
        assert mask.sum() == 7
        with pytest.raises(ConfigError, match="action 4 of player_1 is not allowed now"):
            game.act("player_1", 4)


def test_thrust_is_kept_until_it_changes(runs: Callable[..., SavedRun]) -> None:
    with closing(LiveGame(runs("waterworld", **{"env.max_cycles": 15}))) as game:
        game.begin(0, True, None)
        game.take("pursuer_0")
        game.advance()
        assert game.latest_actions["pursuer_0"] == [0, 0]
        game.act("pursuer_0", [0.5, -1])
        for _ in range(2):
            game.advance()
            assert game.latest_actions["pursuer_0"] == [0.5, -1]
        found = game.insight("pursuer_0")
        assert found is not None
        assert len(found.spreads) == 2
        with pytest.raises(ConfigError, match="accepted: one of Box"):
            game.act("pursuer_0", [1.5, 0])


# --- The thread ------------------------------------------------------------------------------------------------------


class Viewer:
    """Keeps the messages of a live episode."""

    def __init__(self, run: SavedRun) -> None:
        self._messages: queue.Queue[str | bytes] = queue.Queue()
        self.gone = False
        self.live = LiveEpisode(run, self._keep)

    def _keep(self, message: str | bytes) -> None:
        if self.gone:
            raise ViewerGoneError("gone")
        self._messages.put(message)

    def says(self, do: str, **more: Any) -> None:
        self.live.put(json.dumps({"do": do, **more}))

    def gets(self, kind: str, where: Callable[[Any], Any] = lambda _: True) -> Any:
        """The next message of a kind; those before it are dropped."""
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            message = self._messages.get(timeout=20)
            found: Any = message if isinstance(message, bytes) else json.loads(message)
            if kind == ("picture" if isinstance(message, bytes) else found["type"]) and where(found):
                return found
        raise AssertionError(f"no {kind}")


@contextmanager
def viewer_of(run: SavedRun) -> Iterator[Viewer]:
    viewer = Viewer(run)
    viewer.live.start()
    try:
        yield viewer
    finally:
        viewer.live.close()


def test_a_viewer_pauses_steps_and_begins_anew(arena: SavedRun) -> None:
    with viewer_of(arena) as viewer:
        hello = viewer.gets("hello")
        assert [card["agent"] for card in hello["agents"]] == ["agent1", "agent2"]
        assert hello["checkpoints"] == [str(int(name[-6:])) for name in arena.files.checkpoints.names()]
        viewer.says("pause")
        before = viewer.gets("moment", lambda moment: not moment["playing"])
        viewer.says("step")
        after = viewer.gets("moment", lambda moment: moment["step"] != before["step"])
        assert after["step"] == before["step"] + 1
        viewer.says("begin", seed=5, deterministic=False, checkpoint="latest")
        anew = viewer.gets("moment", lambda moment: moment["seed"] == 5)
        assert (anew["episode"], anew["step"], anew["playing"]) == (1, 0, False)
        assert anew["scene"]["cells"] == [0, 99]
        viewer.says("begin", checkpoint="4711")
        assert "4711" in viewer.gets("problem")["message"]
        assert viewer.gets("moment")["seed"] == 5


def test_the_env_waits_for_a_person_and_shows_the_end_of_an_episode(arena: SavedRun) -> None:
    with viewer_of(arena) as viewer:
        viewer.gets("hello")
        viewer.says("begin", seed=0)
        viewer.says("take", agent="agent1")
        waiting = viewer.gets("moment", lambda moment: moment["awaited"])
        for step in range(waiting["step"] + 1, 16):
            viewer.says("act", agent="agent1", action=1)
            moment = viewer.gets("moment", lambda moment, step=step: moment["step"] == step)
        assert (moment["is_over"], moment["awaited"], moment["insight"]) == (True, [], None)
        assert viewer.gets("moment", lambda moment: moment["episode"] == 2)["awaited"] == ["agent1"]
        viewer.says("release", agent="agent1")
        assert viewer.gets("moment", lambda moment: moment["step"] == 2)["taken"] == []


def test_a_viewer_gets_a_film_with_a_frame_of_each_step(arena: SavedRun) -> None:
    with viewer_of(arena) as viewer:
        viewer.gets("hello")
        viewer.says("pause")
        viewer.says("film")
        for _ in range(4):
            viewer.says("step")
        viewer.says("film", on=False)
        film = viewer.gets("film")
        path = viewer.live.film(film["name"])
        assert path is not None
        assert len(frames_of_gif(path)[0]) == film["frames"] == 4
        assert viewer.live.film("../" + film["name"]) is None
    assert not path.exists()


def test_pictures_are_those_of_their_steps(runs: Callable[..., SavedRun]) -> None:
    with viewer_of(runs("live_envs:Pictured")) as viewer:
        hello = viewer.gets("hello")
        assert hello["agents"][0]["control"]["starts"] == [2]
        viewer.says("pace", steps_per_s=1000)
        viewer.says("begin")
        viewer.gets("moment", lambda moment: moment["is_over"])
        viewer.says("pause")
        viewer.says("begin")
        for step in range(7):
            picture = np.asarray(Image.open(io.BytesIO(viewer.gets("picture"))))
            moment = viewer.gets("moment")
            if moment["playing"]:  # the start of the second episode may have been on its way
                continue
            viewer.says("step")
            assert (picture[:, 0, 0] == 0).sum() == moment["step"] <= step


@pytest.mark.parametrize(("name", "why"), [("Undrawn", "the env has none"), ("Failing", "ZeroDivisionError: no light")])
def test_an_env_without_pictures_is_played_and_says_why(runs: Callable[..., SavedRun], name: str, why: str) -> None:
    with viewer_of(runs(f"live_envs:{name}")) as viewer:
        viewer.gets("hello")
        over = viewer.gets("moment", lambda moment: moment["is_over"])
        assert why in over["why_not_drawn"]
        assert over["scene"] is None
        assert 3 <= over["returns"]["agent"] <= 6
        viewer.says("film")
        assert why in viewer.gets("problem")["message"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"do": "fly"}', '{"do": "pace", "steps_per_s": 0}', '{"do": "step", "more": 1}', "\ud800"]
)
def test_what_is_no_command_is_refused(arena: SavedRun, text: str) -> None:
    live = LiveEpisode(arena, lambda _: None)
    with pytest.raises(RequestError, match="not a command"):
        live.put(text)


DOES = ("play", "pause", "step", "begin", "pace", "select", "take", "release", "act", "wait", "film")
AGENTS = ("agent1", "agent2", "pursuer_0", "nobody", "", "x" * 999, "\u2028", None, 0, ["agent1"], {})
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 3, -1, 4, 0.5, -0.0, 1e308, -1e308, 2**53, 2**64, 10**400, math.nan, math.inf),
    *(
        "",
        "1",
        "latest",
        "best",
        "../..",
        "0" * 50,
        [],
        [0],
        [0.5, -1],
        [1e308] * 2,
        [[1]],
        [None],
        [0] * 65,
        {},
        {"a": 1},
    ),
)
FIELDS = ("action", "on", "steps_per_s", "seed", "deterministic", "checkpoint", "more")


def odd_command(rng: random.Random) -> str:
    """A command of odd parts, or a damaged one."""
    command: Any = {"do": rng.choice(DOES if rng.random() < 0.9 else ("", "fly", "close", "__init__", None, 3))}
    if rng.random() < 0.8:
        command["agent"] = rng.choice(AGENTS[:4] if rng.random() < 0.7 else AGENTS)
    command |= {name: rng.choice(ODD) for name in rng.sample(FIELDS, rng.choice((0, 1, 1, 1, 2)))}
    text = list(json.dumps(command))
    for _ in range(rng.choice((0, 0, 0, 0, 1, 3))):
        text[rng.randrange(len(text))] = rng.choice('{}[]",:0x\ud800 ')
    return rng.choice(("[" * 9999, "null", "")) if rng.random() < 0.02 else "".join(text)


@pytest.mark.parametrize("n", [100, pytest.param(10_000, marks=pytest.mark.proof)])
@pytest.mark.parametrize("env", ["arena", "waterworld", "classic/tictactoe-v3"])
def test_no_command_ends_an_episode(env: str, n: int, runs: Callable[..., SavedRun]) -> None:
    rng, refused = random.Random(n), 0
    steps = {"arena": "max_timesteps", "waterworld": "max_cycles"}
    algo = {"algo": "maskable_ppo"} if env.startswith("classic") else {f"env.{steps[env]}": 15}
    with viewer_of(runs(env, **algo)) as viewer:
        viewer.gets("hello")
        for number in range(n):
            try:
                viewer.live.put(odd_command(rng))
            except RequestError:
                refused += 1
            if number % 50 == 49:  # all commands so far were obeyed, and the game goes on
                viewer.says("select", agent=f"after {number}")
                problem = viewer.gets(
                    "problem", lambda it, number=number: it["is_final"] or f"after {number}" in it["message"]
                )
                assert not problem["is_final"], problem
        assert 0 < refused < n
        viewer.says("begin", seed=5)
        assert viewer.gets("moment", lambda moment: moment["seed"] == 5)


def test_a_game_ends_when_nobody_listens(arena: SavedRun) -> None:
    with viewer_of(arena) as viewer:
        viewer.gets("hello")
        viewer.gone = True
        deadline_s = time.monotonic() + 10
        while viewer.live._thread.is_alive() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert not viewer.live._thread.is_alive()


def test_a_run_that_cannot_be_played_says_so(arena: SavedRun, tmp_path: Path) -> None:
    broken = SavedRun(arena.files, replace(arena.config, env_kwargs={"height": "three"}))
    with viewer_of(broken) as viewer:
        problem = viewer.gets("problem")
        assert problem["is_final"]
        assert "height must be an integer" in problem["message"]
