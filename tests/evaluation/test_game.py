"""Games: the episodes of evaluations, with persons in them, at a pace, and as pictures and films."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
import pytest
from films import frames_of_gif
from live_envs import made, small_run
from playing import Script, ScriptedStage

from marl_sb3.errors import ConfigError
from marl_sb3.evaluation.game import Game
from marl_sb3.evaluation.playing import play
from marl_sb3.evaluation.session import GameSession, ViewerCommand
from marl_sb3.runs.building import make_envs
from marl_sb3.runs.run import SavedRun


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
def game(arena: SavedRun) -> Iterator[Game]:
    with closing(made(arena)) as game:
        game.begin(seed=3, deterministic=True, checkpoint=None)
        yield game


def returns_of_next(game: Game) -> dict[str, float]:
    """Play to the end of the episode."""
    while not game.is_over:
        game.advance()
    returns = game.returns
    game.advance()
    return returns


# --- Games -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_seed_gives_the_returns_of_evaluations_beside_another_game(arena: SavedRun, deterministic: bool) -> None:
    with closing(make_envs(arena.config, n_envs=1)) as env:
        played = play(arena.policies(None, env), env, 3, deterministic, seed=3)
    with closing(made(arena)) as game, closing(made(arena)) as other:
        game.begin(3, deterministic, None)
        other.begin(4, False, "latest")
        live, others = [], []
        for _ in range(3):
            live.append(returns_of_next(game))
            others.append(returns_of_next(other))  # draws from the same generators of the process
    assert live == [dict(episode.agent_returns) for episode in played.episodes]
    assert others != live


def test_a_person_moves_an_agent_and_the_policies_all_others(game: Game) -> None:
    assert game.viewed.scene is not None
    assert game.controls["agent1"].names == ["up", "right", "down", "left"]
    start = game.viewed.scene()["cells"]
    game.take("agent1")
    assert game.awaited() == ["agent1"]
    game.act("agent1", 1)
    assert game.awaited() == []
    suggested = game.insight("agent2")
    game.advance()
    scene = game.viewed.scene()
    assert scene["cells"][0] == start[0] + 1  # from the upper left corner to the right
    assert game.latest_actions["agent1"] == 1
    assert suggested is not None
    assert game.latest_actions["agent2"] == suggested.action
    assert scene["visited"] == [1]


def test_an_insight_has_the_probabilities_that_the_policy_draws_from(game: Game) -> None:
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
        ("agent2", 1, "no person has taken over agent2"),
        ("agent3", 1, "no person has taken over agent3"),
    ],
)
def test_actions_that_are_none_are_refused(game: Game, agent: str, action: Any, words: str) -> None:
    game.take("agent1")
    with pytest.raises(ConfigError, match=words):
        game.act(agent, action)
    assert game.awaited() == ["agent1"]


def test_a_person_plays_a_game_with_turns_and_forbidden_moves(runs: Callable[..., SavedRun]) -> None:
    with closing(made(runs("classic/tictactoe-v3", algo="maskable_ppo"))) as game:
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
    with closing(made(runs("waterworld", **{"env.max_cycles": 15}))) as game:
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


# --- The player ------------------------------------------------------------------------------------------------------


def played(run: SavedRun, script: Script, player: list[GameSession] | None = None) -> ScriptedStage:
    """Play until the script ends; `player` gets the player before."""
    with closing(made(run)) as game:
        stage = ScriptedStage(script)
        playing = GameSession(game, stage, 10.0, clock=lambda: stage.now_s)
        if player is not None:
            player.append(playing)
        playing.play()
        playing.close()
    return stage


def wait(steps: int) -> Iterator[None]:
    yield from [None] * steps


def test_steps_come_at_their_pace_and_the_end_of_an_episode_is_shown_longer(arena: SavedRun) -> None:
    def script(_: ScriptedStage) -> Generator[ViewerCommand | None]:
        yield from wait(17)
        yield ViewerCommand("pace", steps_per_s=20)
        yield from wait(2)

    found = [(at, moment.episode, moment.step) for at, moment in played(arena, script).moments]
    assert found[:16] == [(round(0.1 * step, 2), 1, step) for step in range(16)]
    assert found[16:] == [(2.0, 2, 0), (2.1, 2, 1), (2.1, 2, 1), (2.15, 2, 2), (2.2, 2, 3)]


def test_steps_that_come_too_fast_to_be_seen_are_not_shown(arena: SavedRun) -> None:
    def script(_: ScriptedStage) -> Generator[ViewerCommand | None]:
        yield ViewerCommand("pace", steps_per_s=100)
        yield from wait(9)

    assert [moment.step for _, moment in played(arena, script).moments] == [0, 0, 4, 8]


def test_a_viewer_pauses_steps_and_begins_anew(arena: SavedRun) -> None:
    def script(stage: ScriptedStage) -> Generator[ViewerCommand | None]:
        yield from wait(2)
        yield ViewerCommand("pause")
        assert (stage.moment.playing, stage.moment.step) == (False, 2)
        yield ViewerCommand("step")
        assert stage.moment.step == 3
        yield ViewerCommand("begin", seed=5, deterministic=False, checkpoint="latest")
        anew = stage.moment
        assert (anew.seed, anew.episode, anew.step, anew.playing) == (5, 1, 0, False)
        assert stage.view is not None
        assert stage.view.scene is not None
        assert stage.view.scene["cells"] == [0, 99]
        yield ViewerCommand("begin", checkpoint="4711")
        assert "4711" in stage.problems[0]
        assert stage.moment.seed == 5
        yield ViewerCommand("play")
        yield None
        assert stage.moment.step == 1

    played(arena, script)


def test_the_env_waits_for_a_person_and_shows_the_end_of_an_episode(arena: SavedRun) -> None:
    def script(stage: ScriptedStage) -> Generator[ViewerCommand | None]:
        yield ViewerCommand("take", agent="agent1")
        assert stage.moment.awaited == ["agent1"]
        yield ViewerCommand("step")
        assert stage.problems == ["agent1: choose an action "]
        yield ViewerCommand("play")
        for step in range(1, 16):
            yield ViewerCommand("act", agent="agent1", action=1)
            assert stage.moment.awaited == []
            yield None
            assert (stage.moment.step, stage.moment.awaited) == (step, ["agent1"] * (step < 15))
        assert (stage.now_s, stage.moment.is_over, stage.moment.insight) == (0.0, True, None)
        yield None
        assert (stage.now_s, stage.moment.episode, stage.moment.awaited) == (5.0, 2, ["agent1"])
        yield ViewerCommand("release", agent="agent1")
        yield None
        assert (stage.moment.step, stage.moment.taken) == (1, [])

    played(arena, script)


def test_a_viewer_gets_a_film_with_a_frame_of_each_step(arena: SavedRun) -> None:
    player: list[GameSession] = []

    def script(stage: ScriptedStage) -> Generator[ViewerCommand | None]:
        yield ViewerCommand("film")
        yield from wait(4)
        yield ViewerCommand("film", on=False)
        (film,) = stage.films
        assert len(frames_of_gif(player[0].films[film.name])[0]) == film.frames == 4

    played(arena, script, player)
    assert not any(path.exists() for path in player[0].films.values())


def test_pictures_are_those_of_their_steps(runs: Callable[..., SavedRun]) -> None:
    def script(stage: ScriptedStage) -> Generator[ViewerCommand | None]:
        for step in [*range(6), 6, 0, 1]:
            assert stage.view is not None
            assert stage.view.image is not None
            assert (stage.view.image[:, 0, 0] == 0).sum() == stage.moment.step == step
            yield None

    played(runs("live_envs:Pictured"), script)


@pytest.mark.parametrize(("name", "why"), [("Undrawn", "the env has none"), ("Failing", "ZeroDivisionError: no light")])
def test_an_env_without_pictures_is_played_and_says_why(runs: Callable[..., SavedRun], name: str, why: str) -> None:
    def script(stage: ScriptedStage) -> Generator[ViewerCommand | None]:
        yield from wait(6)
        assert stage.moment.is_over
        assert why in stage.moment.why_not_drawn
        assert 3 <= stage.moment.returns["agent"] <= 6
        yield ViewerCommand("film")
        assert why in stage.problems[0]

    played(runs(f"live_envs:{name}"), script)


DOES = get_args(get_type_hints(ViewerCommand)["do"])
AGENTS = ("agent1", "agent2", "pursuer_0", "nobody", "", "x" * 999, "\u2028", None, 0, ["agent1"], {})
ODD: tuple[Any, ...] = (None, True, False, 0, 1, 3, -1, 4, 0.5, -0.0, 1e308, -1e308, 2**53, 2**64, 10**400, math.nan)
ODD += (math.inf, "", "1", "latest", "best", "../..", "0" * 50, {}, {"a": 1}, [], [0], [0.5, -1], [1e308] * 2, [[1]])
ODD += ([None], [0] * 65)
FIELDS = ("action", "on", "steps_per_s", "seed", "deterministic", "checkpoint", "against", "swaps", "more")


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


@pytest.mark.parametrize("n", [50, pytest.param(10_000, marks=pytest.mark.proof)])
@pytest.mark.parametrize("env", ["arena", "waterworld", "classic/tictactoe-v3"])
def test_no_command_ends_a_game(env: str, n: int, runs: Callable[..., SavedRun]) -> None:
    rng, refused = random.Random(n), []

    def script(stage: ScriptedStage) -> Generator[ViewerCommand | None]:
        for _ in range(n):
            try:
                yield msgspec.json.decode(odd_command(rng), type=ViewerCommand)
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                refused.append(error)
            if stage.moment.playing and not stage.moment.awaited:
                yield None
        yield ViewerCommand("begin", seed=5)
        assert stage.moment.seed == 5

    steps = {"arena": "max_timesteps", "waterworld": "max_cycles"}
    algo = {"algo": "maskable_ppo"} if env.startswith("classic") else {f"env.{steps[env]}": 15}
    assert played(runs(env, **algo), script).problems
    assert 0 < len(refused) < n
