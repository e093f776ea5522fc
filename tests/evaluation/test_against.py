"""One policy against others in the same env: seats, opponents of all kinds, outcomes, errors, the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from playing import PLANS, SEEING, WORTH, Teams, Third, ZeroSum, always, make, plans
from refusals import refusal
from toy_envs import NoisyEnv, SampledEnv, ScriptedEnv
from turn_env import TurnEnv

import marl_sb3
from marl_sb3 import ConfigError, HookError, PolicySpec, evaluate_policies, make_vec_env
from marl_sb3.evaluate import main
from marl_sb3.evaluation.opponents import Opponent, RandomOpponent
from marl_sb3.evaluation.played import metrics_of, outcomes
from marl_sb3.evaluation.playing import play, play_seats

PARTS = spaces.Tuple([spaces.Discrete(3, start=1), spaces.Dict(aim=spaces.Box(-1, 1, (2,)))])
POLICIES = {"a": 0, "b": 1}  # what the policies of `ZeroSum` always do


class Seated(Third):
    """Remembers what it was asked."""

    made: list[Seated] = []  # noqa: RUF012

    def __init__(self, agent: str) -> None:
        self.agent, self.asked = agent, list[Any]()
        self.made.append(self)

    def act(self, observation: Any, mask: Any, rng: np.random.Generator) -> int:
        self.asked.append((observation, mask, rng.random()))
        return 2


@pytest.fixture(autouse=True)
def _nobody_is_made() -> None:
    Seated.made.clear()


@pytest.mark.parametrize("against", [f"{__name__}:Third", Third, Third()])
def test_each_seat_in_turn_is_played_by_its_policy_and_the_others_by_the_opponent(against: Any) -> None:
    algorithm, env = always(POLICIES), make_vec_env(ZeroSum, n_envs=3, masked=False)
    found = evaluate_policies(algorithm, env, 4, against=against, seed=1)
    assert {seat: metrics["agent_episode_returns_mean"] for seat, metrics in found.items()} == {
        "a": {"a": WORTH[0] - WORTH[2], "b": WORTH[2] - WORTH[0]},
        "b": {"a": WORTH[2] - WORTH[1], "b": WORTH[1] - WORTH[2]},
    }
    assert [found[seat]["module_episode_returns_mean"] for seat in "ab"] == [{"a": 0.5}, {"b": -0.5}]
    assert [[found[seat][outcome] for outcome in ("won", "drawn", "lost")] for seat in "ab"] == [[1, 0, 0], [0, 0, 1]]
    assert [found[seat]["num_episodes"] for seat in "ab"] == [4, 4]


def test_a_class_is_made_for_each_agent_with_its_id_if_it_takes_one_and_sees_what_the_env_shows() -> None:
    settings: Any = {"script": {"a": (3, "truncated"), "b": (2, "terminated")}, "masked": True}
    algorithm = make(policies={"shared": PolicySpec(frame_stack=2)}, env_kwargs=settings)
    env = make_vec_env(ScriptedEnv, n_envs=2, **settings)
    evaluate_policies(algorithm, env, 2, against=Seated, seed=1)
    seen = {player.agent: [observation.tolist() for observation, _, _ in player.asked] for player in Seated.made}
    assert seen == {"b": [[2, 1, 0], [2, 1, 0], [2, 1, 1], [2, 1, 1]], "a": [[1, 3, t] for t in (0, 0, 1, 1, 2, 2)]}
    masks = [mask.tolist() for _, mask, _ in Seated.made[0].asked]
    assert masks == [[False, True, True]] * 2 + [[True, False, True]] * 2


def test_each_agent_of_each_env_has_its_own_draws_which_the_seed_repeats() -> None:
    algorithm, env = always(POLICIES), make_vec_env(ZeroSum, n_envs=3, masked=False)

    def drawn(seed: int) -> list[float]:
        Seated.made.clear()
        play_seats(algorithm, env, Seated, n_episodes=6, seed=seed)
        return [draw for player in Seated.made for _, _, draw in player.asked]

    assert drawn(1) == drawn(1) != drawn(2)
    assert len(set(drawn(1))) == 12


def test_random_players_take_each_allowed_action_equally_often() -> None:
    rng = np.random.default_rng(0)
    player = RandomOpponent(spaces.Discrete(4, start=2))
    drawn = [player.act(None, np.array([True, False, True, True]), rng) for _ in range(3000)]
    assert [drawn.count(action) / 3000 for action in (2, 3, 4, 5)] == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3], abs=0.03)
    several = RandomOpponent(spaces.MultiDiscrete([2, 3]))
    assert several.act(None, np.array([False, True, False, False, True]), rng).tolist() == [1, 2]
    switches = RandomOpponent(spaces.MultiBinary(2))
    assert switches.act(None, np.array([True, False, False, True]), rng).tolist() == [0, 1]


class Actions:
    """An `ActingWatcher` that keeps what was done in each step."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def begin_episodes(self, step: Any) -> None: ...

    def before_step(self, step: Any, acted: Any, actions: Any) -> None:
        (of_group,) = actions
        self.done.append(np.where(step.to_act, of_group, -1).tolist())

    def after_step(self, step: Any) -> None: ...

    def restart_envs(self, env_indices: Any) -> None: ...


@pytest.mark.parametrize(
    ("spec", "env"),
    [
        (PolicySpec(**SEEING), (NoisyEnv, {"plans": plans(2)})),
        (PolicySpec(**SEEING), (TurnEnv, {"plans": PLANS})),
        (PolicySpec(marl_sb3.RecurrentPPO, "MlpLstmPolicy"), (NoisyEnv, {"plans": plans(2)})),
        (PolicySpec(marl_sb3.MaskablePPO, **SEEING), (NoisyEnv, {"plans": plans(2), "masked": True})),
    ],
    ids=["parallel", "turns", "memory", "masks"],
)
def test_a_policy_plays_against_itself_as_in_self_play(spec: PolicySpec, env: tuple[Any, Any]) -> None:
    """Whatever its policy sees, remembers and may not do, an agent acts alike whoever plays the others."""
    kind, arguments = env
    algorithm = make(kind, {"p": spec}, env_kwargs=arguments)
    th.manual_seed(0)
    with th.no_grad():  # what is seen decides
        for parameter in algorithm.policies["p"].policy.parameters():
            parameter.normal_()

    def done(acting: Any) -> list[Any]:
        watcher, envs = Actions(), make_vec_env(kind, n_envs=2, seed=0, **arguments)
        play(algorithm, envs, 4, True, 1, acting=acting, against=algorithm.bundle(), watchers=[watcher])
        return watcher.done

    together = done(None)
    assert len({action for step in together for row in step for action in row}) > 2
    assert done(algorithm.env.agents[:1]) == done(algorithm.env.agents[1:]) == together


def test_policies_of_another_training_are_opponents_whose_training_goes_on_unchanged() -> None:
    ours, theirs = always(POLICIES), always({"a": 2, "b": 2})
    env = make_vec_env(ZeroSum, n_envs=3, masked=False)
    before = flat_weights(theirs)
    for against in (theirs, theirs.bundle()):
        found = evaluate_policies(ours, env, 4, against=against, seed=1)
        assert [found[seat]["agent_episode_returns_mean"][seat] for seat in "ab"] == [0.5, -0.5]
    assert flat_weights(theirs) == before


def flat_weights(algorithm: Any) -> list[float]:
    return [x for p in algorithm.policies.values() for w in p.policy.parameters() for x in w.flatten().tolist()]


# Seats


def test_several_agents_are_one_side_and_seats_are_by_choice() -> None:
    algorithm, env = always({"shared": 0}, Teams), make_vec_env(Teams, n_envs=2)
    found = play_seats(algorithm, env, Third, [["z", "x"], ["y"]], n_episodes=4, seed=1)
    assert {seat: each.metrics["agent_episode_returns_mean"]["z"] for seat, each in found.items()} == {
        ("z", "x"): pytest.approx(1 - 2.5 / 3),
        ("y",): pytest.approx(0.5 - 2 / 3),
    }
    assert metrics_of(found)["z,x"]["won"] == 1.0


@pytest.mark.parametrize(
    ("seats", "message"),
    [
        ([["a", "c"]], "seats: unknown agent 'c'; the env has a, b"),
        ([["a", "b"]], r"a seat has all agents \(a, b\), which leaves none to an opponent"),
        ([[]], "a seat has no agent; accepted: some agents of several"),
    ],
)
def test_seats_that_leave_nobody_on_a_side_are_refused(seats: Any, message: str) -> None:
    env = make_vec_env(ZeroSum, masked=False)
    with pytest.raises(ConfigError, match=message):
        evaluate_policies(always(POLICIES), env, against="random", seats=seats)
    with pytest.raises(ConfigError, match="seats needs an opponent"):
        evaluate_policies(always(POLICIES), env, seats=[["a"]])


@pytest.mark.parametrize(
    ("env", "known"),
    [
        ({}, True),
        ({"zero_sum": False}, False),  # the sum varies with what the random players do
        ({"worth": (0.0,) * 4}, True),  # nobody is ever paid: all draws
        ({"zero_sum": False, "worth": (1.0,) * 4}, False),  # all are always paid: nobody wins from the others
    ],
)
def test_outcomes_are_counted_only_where_returns_oppose_each_other(env: Any, known: bool) -> None:
    found = play_seats(always({"shared": 0}, Teams), make_vec_env(Teams, n_envs=2, **env), n_episodes=20, seed=1)
    by_seat = outcomes(found)
    assert set(by_seat) == (set(found) if known else set())
    for shares in by_seat.values():
        assert [sum(of_episode) for of_episode in zip(*shares.values(), strict=True)] == [1.0] * 20


# Opponents that fail


def answering(answer: Callable[[Any], Any] | Any) -> Opponent:
    class Wrong:
        def act(self, observation: Any, mask: Any, rng: Any) -> Any:
            return answer(observation) if callable(answer) else answer

    return Wrong()


WHERE = r"opponent .*answering.<locals>.Wrong, agent 'b', env 0, episode 1, step {}: "


@pytest.mark.parametrize(
    ("answer", "step", "message"),
    [
        (lambda seen: 2 if seen[2] < 2 else {}["wheel"], 3, "it raised KeyError: 'wheel'"),
        (3, 1, r"it returned 3; accepted: an action in Discrete\(3\)"),
        (-1, 1, "it returned -1; accepted"),
        (1.0, 1, "it returned 1.0; accepted"),
        (None, 1, "it returned None; accepted"),
        ("left", 1, "it returned 'left'; accepted"),
        ([1], 1, r"it returned \[1\]; accepted"),
        ([[1], []], 1, r"it returned \[\[1\], \[\]\]; accepted: an action in"),
        (0, 1, r"it returned 0, which the action mask forbids; accepted: what the mask allows, \[0, 1, 1\]"),
        (1, 2, "it returned 1, which the action mask forbids"),
    ],
)
def test_an_opponent_that_fails_is_named_with_agent_env_and_step(answer: Any, step: int, message: str) -> None:
    env = make_vec_env(ScriptedEnv, n_envs=2, masked=True)
    with pytest.raises(HookError, match=WHERE.format(step) + message):
        play(make(), env, 4, acting=["a"], against=answering(answer))


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), [0.5, 1], [0.5, 1.5]),
        (spaces.Box(-1, 1, (2,), np.float32), np.array([1, 0]), [float("nan"), 0]),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [1, 3]),
        (spaces.Discrete(3, start=5), np.int64(7), 2),
        (PARTS, (np.int64(3), {"aim": np.array([0.5, 1], np.float32)}), (0, {"aim": np.array([0.5, 1], np.float32)})),
    ],
)
def test_actions_are_those_of_the_env(space: Any, good: Any, bad: Any) -> None:
    settings = {"observation_space": spaces.Box(-1, 1, (2,)), "action_space": space}
    algorithm, env = make(SampledEnv, env_kwargs=settings), make_vec_env(SampledEnv, **settings)
    play(algorithm, env, 1, acting=["a"], against=answering(good))
    (received,) = env.call("received", [0])
    for step in received:
        np.testing.assert_equal(step["b"], good)
    with pytest.raises(HookError, match="accepted: an action in"):
        play(algorithm, env, 1, acting=["a"], against=answering(bad))
    play(algorithm, env, 1, acting=["a"], against="random")
    assert all(space.contains(step["b"]) for step in env.call("received", [0])[0])


def test_actions_of_several_parts_are_those_that_the_mask_allows() -> None:
    settings = {"observation_space": spaces.Box(-1, 1, (2,)), "action_space": PARTS, "masked": True}
    spec = {"shared": PolicySpec("maskable_ppo", batch_size=4)}
    algorithm, env = make(SampledEnv, policies=spec, env_kwargs=settings), make_vec_env(SampledEnv, **settings)
    play(algorithm, env, 3, acting=["a"], against="random")
    moves = [step["b"][0] - 1 for step in env.call("received", [0])[0]]
    assert all(move != number % 3 % 2 for number, move in enumerate(moves))  # of steps 0, 1 and 2 of each episode
    forbidden = (np.int64(1), {"aim": np.zeros(2, np.float32)})
    with pytest.raises(HookError, match="which the action mask forbids"):
        play(algorithm, env, 1, acting=["a"], against=answering(forbidden))


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("Third", "opponent 'Third'; accepted: random, greedy, "),
        ("no_such_module:Third", "opponent 'no_such_module:Third': cannot import"),
        (f"{__name__}:Fourth", "there is no method act"),
        (f"{__name__}:always", "there is no method act"),
        (7, "opponent 7: there is no method act"),
        (
            type("Fussy", (Third,), {"__init__": lambda self, colour: None}),
            r"Fussy cannot be made for agent 'b': TypeEr",
        ),
        (
            type("Leaving", (Third,), {"__init__": lambda self: sys.exit(3)}),
            "Leaving cannot be made for agent 'b': Sys",
        ),
        ({"c": Third}, "against has 'c': no opponent for b; accepted: an opponent for each of b"),
    ],
)
def test_what_is_no_opponent_is_refused(against: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate_policies(always(POLICIES), make_vec_env(ZeroSum, masked=False), against=against)


def test_opponents_of_another_env_are_refused() -> None:
    with pytest.raises(ConfigError, match="the env has agents a, b; the policies act for x, y, z"):
        evaluate_policies(always(POLICIES), make_vec_env(ZeroSum, masked=False), against=always({"shared": 0}, Teams))


# The command


@pytest.fixture(scope="module")
def zero_sum_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "zero_sum"
    settings = {"n_steps": 8, "batch_size": 8, "policy_kwargs": {"net_arch": [4]}}
    marl_sb3.train(f"{__name__}:ZeroSum", timesteps=16, n_envs=2, seed=1, settings=settings, run_dir=folder)
    return folder


def shown(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def test_the_command_reports_each_seat(zero_sum_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [zero_sum_run, "--env", f"{__name__}:ZeroSum", "--against", "playing:Last", "--episodes", 30]
    found, again = (json.loads(shown(capsys, *line, "--json", "--stochastic")) for _ in range(2))
    assert [seat["agent_episode_returns"] for seat in again["seats"].values()] == [
        seat["agent_episode_returns"] for seat in found["seats"].values()
    ]
    assert (found["against"], found["n_episodes"], list(found["seats"])) == ("playing:Last", 30, ["a", "b"])
    assert "hints" not in found
    for agent, seat in found["seats"].items():
        returns, lost = seat["agent_episode_returns"][agent], seat["lost"]
        assert (seat["agents"], returns["n"], lost["n"]) == ([agent], 30, 30)
        assert (returns["min"], returns["max"]) == (0 - WORTH[3], 1 - WORTH[3])  # of the worst action and the best
        assert sum(seat[outcome]["mean"] for outcome in ("won", "drawn", "lost")) == pytest.approx(1)
        assert lost["ci95"] == pytest.approx(wilson_by_hand(lost["mean"], 30), abs=1e-3)
    text = shown(capsys, *line, "--agents", "b").splitlines()
    assert "against playing:Last, each seat 30 episodes in 2 envs" in text[0]
    rows = ["b: won", "b: drawn", "b: lost", "b: return of b", "b: episode length"]
    assert [row.split("  ")[0] for row in text[3:-1]] == rows
    words = (
        "all 30 episodes are one and the same: nothing in them was drawn at random; --stochastic samples the actions"
    )
    assert text[-1] == f"b: {words}"
    assert json.loads(shown(capsys, *line[:3], "--episodes", 30, "--json"))["hints"] == [words]


def wilson_by_hand(p: float, n: int) -> tuple[float, float]:
    z, half = 1.96, 1.96 * (p * (1 - p) / n + 1.96**2 / (4 * n * n)) ** 0.5
    return tuple((p + z * z / (2 * n) + sign * half) / (1 + z * z / n) for sign in (-1, 1))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--against nothing", "opponent 'nothing'; accepted: random, greedy, "),
        ("--against no_such:Thing", "opponent 'no_such:Thing': cannot import 'no_such'"),
        ("--against random --agents c", "seats: unknown agent 'c'; the env has a, b"),
        ("--against random --agents a,b", "a seat has all agents (a, b), which leaves none to an opponent"),
        ("--agents a", "--agents needs --against WHO"),
        ("--against random --record DIR", "--record does not go with --against"),
        ("--against random --on DATA", "--on plays no episode: --against does not go with it"),
    ],
)
def test_wrong_command_lines_are_refused(zero_sum_run: Path, capsys: Any, line: str, message: str) -> None:
    assert message in refusal(main, [str(zero_sum_run), "--env", f"{__name__}:ZeroSum", *line.split()], capsys)


def test_an_opponent_that_fails_ends_the_command_with_1(zero_sum_run: Path, capsys: Any) -> None:
    line = [str(zero_sum_run), "--env", f"{__name__}:ZeroSum", "--against", f"{__name__}:Third"]
    assert main(line) == 1
    assert "it returned 2, which the action mask forbids" in capsys.readouterr().err
