"""Games against rivals: who plays which agent, swapped sides, persons, and what a rival does wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any

import pytest
import torch as th
from playing import PLANS, SEEING, Last, ScriptedStage, Teams, ZeroSum, always, make, plans
from toy_envs import NoisyEnv
from turn_env import TurnEnv

import marl_sb3
from marl_sb3 import ConfigError, HookError, PolicySpec, combine_policies, make_vec_env
from marl_sb3.evaluation.game import Game, GamePlan
from marl_sb3.evaluation.opponents import Rival
from marl_sb3.evaluation.playing import play
from marl_sb3.evaluation.session import GameSession, ViewerCommand
from marl_sb3.evaluation.viewed_env import view_if_drawn

OPEN = partial(ZeroSum, masked=False)


@contextmanager
def game(algorithm: Any, rival: Any, env: Any = OPEN, settings: Any = None, **plan: Any) -> Iterator[Game]:
    """A game of an algorithm against one rival."""
    rivals, policies = [Rival("them", lambda _: rival)], lambda *_: algorithm.bundle()
    made = Game(GamePlan(env, settings or {}, policies, name="us", rivals=rivals, **plan), partial(view_if_drawn, env))
    try:
        yield made
    finally:
        made.close()


def episodes_of(game: Game, n: int) -> list[tuple[dict[str, str], dict[str, float]]]:
    found = []
    while len(found) < n:
        game.advance()
        if game.is_over:
            found.append((dict(game.players), dict(game.finished[0].agent_returns)))
    return found


# --- Who plays -------------------------------------------------------------------------------------------------------

US = {"a": 0, "b": 0}  # worth 1; the rival's actions are worth 0.25


@pytest.mark.parametrize("rival", [f"{Last.__module__}:Last", {"a": 3, "b": 3}], ids=["code", "run"])
def test_sides_are_swapped_after_each_episode(rival: Any) -> None:
    with game(always(US), rival if isinstance(rival, str) else always(rival).bundle()) as playing:
        playing.begin(1, True, None, "them")
        assert episodes_of(playing, 3) == [
            ({"a": "us", "b": "them"}, {"a": 0.75, "b": -0.75}),
            ({"a": "them", "b": "us"}, {"a": -0.75, "b": 0.75}),
            ({"a": "us", "b": "them"}, {"a": 0.75, "b": -0.75}),
        ]
        assert (playing.result, playing.score.tally()) == ("us won", "us 3 : 0 them")
        playing.begin(1, True, None, "them", swaps=False)
        assert [players["a"] for players, _ in episodes_of(playing, 2)] == ["us", "us"]
        assert playing.score.tally() == "us 5 : 0 them"
        playing.begin(1, True, None)
        assert episodes_of(playing, 1) == [({"a": "us", "b": "us"}, {"a": 0.0, "b": 0.0})]
        assert playing.score.tally() == ""


@pytest.mark.parametrize("rival", ["random", "another"])
def test_without_swaps_the_episodes_are_those_of_evaluations(rival: str) -> None:
    settings: Any = {"plans": plans(2), "masked": True}
    ours, other = (make(NoisyEnv, {"p": PolicySpec(**SEEING)}, env_kwargs=settings, seed=seed) for seed in (0, 1))
    against: Any = other.bundle() if rival == "another" else rival
    evaluation = play(ours, make_vec_env(NoisyEnv, **settings), 4, False, 3, acting=["b"], against=against)
    with game(ours, against, NoisyEnv, settings, seat=["b"]) as playing:
        playing.begin(3, False, None, "them", swaps=False)
        assert [returns for _, returns in episodes_of(playing, 4)] == [e.agent_returns for e in evaluation.episodes]


@pytest.mark.parametrize(
    ("spec", "env"),
    [
        (PolicySpec(**SEEING), (NoisyEnv, {"plans": plans(2)})),
        (PolicySpec(**SEEING), (TurnEnv, {"plans": PLANS})),
        (PolicySpec(marl_sb3.RecurrentPPO, "MlpLstmPolicy"), (NoisyEnv, {"plans": plans(2)})),
    ],
    ids=["parallel", "turns", "memory"],
)
def test_a_policy_that_swaps_sides_with_itself_plays_as_alone(spec: PolicySpec, env: tuple[Any, Any]) -> None:
    """What policies see and remember begins anew with each episode, whoever has played the agent before."""
    kind, settings = env
    algorithm = make(kind, {"p": spec}, env_kwargs=settings)
    th.manual_seed(0)
    with th.no_grad():  # what is seen decides
        for parameter in algorithm.policies["p"].policy.parameters():
            parameter.normal_()
    done: dict[str, list[Any]] = {"": [], "them": []}
    for against, actions in done.items():
        with game(algorithm, algorithm.bundle(), kind, settings) as playing:
            playing.begin(1, True, None, against)
            while playing.episode < 5:
                playing.advance()
                actions.append((playing.episode, playing.latest_actions))
    assert done[""] == done["them"]
    assert len({str(actions) for _, actions in done[""]}) > 3


def test_a_person_sits_in_the_place_of_the_policies() -> None:
    with game(always(US), always({"a": 3, "b": 3}).bundle()) as playing:
        playing.begin(1, True, None, "them")
        playing.take("b")
        playing.act("b", 1)
        assert playing.players == {"a": "them", "b": "You"}
        assert episodes_of(playing, 1) == [({"a": "them", "b": "You"}, {"a": 0.25, "b": -0.25})]
        playing.advance()
        playing.act("b", 2)
        assert episodes_of(playing, 1) == [({"a": "them", "b": "You"}, {"a": -0.25, "b": 0.25})]
        assert playing.result == "You won"
        assert playing.score.tally() == "them 1 : 1 You"
        playing.release("b")
        assert set(playing.players.values()) == {"us", "them"}


def test_an_episode_that_a_person_joins_late_is_not_the_persons() -> None:
    two_steps = partial(ZeroSum, masked=False, length=2)
    with game(always(US), always({"a": 3, "b": 3}).bundle(), two_steps) as playing:
        for taken_at, result, tally in ((0, "You won", "You 1 : 0 them"), (1, "a won", "a 1 : 0 b")):
            playing.begin(1, True, None, "them")
            for step in range(2):
                if step == taken_at:
                    playing.take("a")
                if step >= taken_at:
                    playing.act("a", 0)
                playing.advance()
            assert (playing.changed, playing.result, playing.score.tally()) == (taken_at > 0, result, tally)
            playing.release("a")
        playing.advance()
        assert not playing.changed


@pytest.mark.parametrize("rival", ["random", "another"])
def test_who_takes_over_and_gives_back_has_changed_nothing(rival: str) -> None:
    spec, settings = PolicySpec(marl_sb3.RecurrentPPO, "MlpLstmPolicy"), {"plans": plans(2)}
    ours, other = (make(NoisyEnv, {"p": spec}, env_kwargs=settings, seed=seed) for seed in (0, 1))
    done: list[list[Any]] = []
    for _ in range(2):
        with game(ours, other.bundle() if rival == "another" else rival, NoisyEnv, settings) as playing:
            playing.begin(1, False, None, "them")
            done.append([])
            while playing.episode < 4:
                if len(done) == 2 and playing.step % 2:
                    playing.take("b")
                    playing.release("b")
                playing.advance()
                done[-1].append(playing.latest_actions)
    assert done[0] == done[1]


def test_a_rival_that_is_loaded_draws_nothing_from_another_game() -> None:
    """It is loaded in the thread of its viewer; loading draws weights."""
    settings: Any = {"plans": plans(2)}
    algorithm = make(NoisyEnv, {"p": PolicySpec(**SEEING)}, env_kwargs=settings)

    def load(_: Any) -> Any:
        th.rand(9)
        return algorithm.bundle()

    def acted(beginning: Thread | None) -> list[Any]:
        with game(algorithm, "random", NoisyEnv, settings) as playing:
            playing.begin(1, False, None)
            step, found = playing.env.step, list[Any]()

            def stepped(actions: Any) -> Any:
                if beginning is not None and not found:
                    beginning.start()
                    beginning.join(0.2)
                return step(actions)

            playing.env.step = stepped  # type: ignore[method-assign]
            while playing.episode < 4:
                playing.advance()
                found.append(playing.latest_actions)
            return found

    with game(algorithm, None, NoisyEnv, settings) as other:
        other.plan = replace(other.plan, rivals=[Rival("them", load)])
        beginning = Thread(target=other.begin, args=(2, False, None, "them"))
        assert acted(beginning) == acted(None)
        beginning.join()
        assert other.against == "them"


def test_the_first_side_is_what_one_policy_plays() -> None:
    policies: Any = {"p": PolicySpec(), "q": PolicySpec()}
    algorithm = make(Teams, policies, policy_mapping_fn={"x": "p", "y": "q", "z": "p"})
    with game(algorithm, "random", Teams) as playing:
        playing.begin(1, True, None, "them")
        assert playing.players == {"x": "us", "y": "them", "z": "us"}
        episodes_of(playing, 1)
        playing.advance()
        assert playing.players == {"x": "them", "y": "us", "z": "them"}


# --- What is refused -------------------------------------------------------------------------------------------------


class LosesItsWay:
    """Plays three times."""

    left = 3

    def act(self, observation: Any, mask: Any, rng: Any) -> int:
        LosesItsWay.left -= 1
        return 3 if LosesItsWay.left >= 0 else {}["map"]


class Leaves:
    """Ends the process that asks it."""

    def act(self, observation: Any, mask: Any, rng: Any) -> int:
        raise SystemExit


def test_a_rival_that_ends_the_process_has_failed() -> None:
    with game(always(US), Leaves()) as playing, pytest.raises(HookError, match=r"Leaves, agent 'b', .* SystemExit"):
        playing.begin(1, True, None, "them")


def test_a_rival_that_fails_is_named_with_episode_and_step_until_the_game_begins_anew() -> None:
    with game(always(US), LosesItsWay()) as playing:
        playing.begin(1, True, None, "them")
        for _ in range(2):
            LosesItsWay.left = 0
            with pytest.raises(HookError, match="LosesItsWay, agent 'b', env 0, episode 1, step 1: it raised KeyErr"):
                playing.begin(1, True, None, "them")
            with pytest.raises(HookError, match="'map'"):
                playing.advance()
            assert playing.insight("a") is not None
        LosesItsWay.left = 3
        playing.begin(1, True, None, "them")
        with pytest.raises(HookError, match=r"agent 'a', env 0, episode 4, step 1"):
            episodes_of(playing, 4)
        assert playing.score.tally() == "us 3 : 0 them"


@pytest.mark.parametrize(
    ("rival", "message"),
    [
        (
            lambda: always({"shared": 0}, Teams).bundle(),
            "them cannot play b: no policy of it is for agent b, but for x, y, z",
        ),
        (lambda: make(env_kwargs={}).bundle(), r"them cannot play b: the env has space Box\(0.0, 1.0, \(1,\)"),
        (lambda: "no_such:Thing", "cannot import 'no_such'"),
        (lambda: f"{__name__}:OPEN", "there is no method act"),
    ],
    ids=["other agents", "other spaces", "no module", "no opponent"],
)
def test_who_cannot_play_is_refused_and_nothing_has_changed(rival: Callable[[], Any], message: str) -> None:
    with game(always(US), rival()) as playing:
        playing.begin(5, True, None)
        before = playing.players
        with pytest.raises(ConfigError, match=message):
            playing.begin(1, True, None, "them")
        assert (playing.against, playing.players) == ("", before)
        episodes_of(playing, 1)
        with pytest.raises(ConfigError, match=r"unknown opponent '\.\./them'; accepted: them"):
            playing.begin(1, True, None, "../them")


@pytest.mark.parametrize(("side", "pays"), [("b", 0.75), ("a", -0.75)])
def test_who_can_play_one_side_keeps_it(side: str, pays: float) -> None:
    rival = combine_policies({side: always({"a": 3, "b": 3}).bundle()})
    with game(always(US), rival) as playing:
        playing.begin(1, True, None, "them")
        assert [(players[side], returns["a"]) for players, returns in episodes_of(playing, 2)] == [("them", pays)] * 2
        with pytest.raises(ConfigError, match="them cannot play"):
            playing.take(side)
        assert playing.persons == {}
    with (
        game(always(US), rival, seat=[side]) as playing,
        pytest.raises(ConfigError, match="no policy of it is for agent"),
    ):
        playing.begin(1, True, None, "them")


def test_a_viewer_whose_first_rival_fails_is_told_and_chooses_another() -> None:
    def script(stage: Any) -> Iterator[Any]:
        assert "opponent 'no_such:Thing': cannot import 'no_such'" in stage.problems[0]
        assert stage.moment.against == ""
        yield ViewerCommand("begin", against="nobody")
        assert "unknown opponent 'nobody'; accepted: them" in stage.problems[1]
        yield ViewerCommand("begin", swaps=False)
        assert len(stage.problems) == 3

    with game(always(US), "no_such:Thing", against="them") as playing:
        stage = ScriptedStage(script)
        GameSession(playing, stage, 10.0, clock=lambda: stage.now_s).play()
        assert len(stage.problems) == 3


def test_a_viewer_whose_rival_fails_plays_on_against_another() -> None:
    def script(stage: Any) -> Iterator[Any]:
        yield ViewerCommand("begin", against="them")
        LosesItsWay.left = 0
        yield None
        assert "it raised KeyError: 'map' Begin anew to go on." in stage.problems[0]
        assert not stage.moment.playing
        yield ViewerCommand("begin", against="other")
        assert stage.moment.playing
        yield None
        assert (stage.moment.against, stage.moment.step) == ("other", 1)

    LosesItsWay.left = 1
    with game(always(US), LosesItsWay()) as playing:
        playing.plan = replace(playing.plan, rivals=[*playing.plan.rivals, Rival("other", lambda _: "random")])
        stage = ScriptedStage(script)
        GameSession(playing, stage, 10.0, clock=lambda: stage.now_s).play()
        assert len(stage.problems) == 1
