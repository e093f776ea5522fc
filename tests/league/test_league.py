"""Leagues: who plays whom, what is counted, snapshots, exact resume, and opponents from files and from code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch as th
from small_trainings import same_weights

import marl_sb3
from marl_sb3 import (
    DQN,
    PPO,
    League,
    MaskablePPO,
    MultiAgentAlgorithm,
    PolicySpec,
    RecurrentPPO,
    load_policies,
    make_sharded_vec_env,
    make_vec_env,
)
from marl_sb3.core.metrics.episodes import Episode
from marl_sb3.core.sb3.tensors import weights
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.seeding import assignment_rng
from marl_sb3.errors import CheckpointError, ConfigError, HookError
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint
from marl_sb3.league.pool import SAMPLING, Member, Score, points_matrix, to_evict
from marl_sb3.league.snapshots import SnapshotBatch

RPS = "classic/rps_v2"
AGENTS = ("player_0", "player_1")
ON = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}}


class Rock:
    """Plays rock."""

    def act(self, observation: Any, mask: Any, rng: np.random.Generator) -> int:
        return 0


class Raises:
    """Raises in its second step."""

    calls = 0

    def act(self, observation: Any, mask: Any, rng: np.random.Generator) -> int:
        Raises.calls += 1
        if Raises.calls > 1:
            raise ValueError("no more")
        return 0


class Illegal:
    """Returns what is no action."""

    def act(self, observation: Any, mask: Any, rng: np.random.Generator) -> int:
        return 3


def trained(
    league: League, spec: PolicySpec | None = None, iterations: int = 0, game: str = RPS, **env: Any
) -> MultiAgentAlgorithm:
    specs = dict.fromkeys(league.seats, spec or PolicySpec(PPO, **ON))
    algorithm = MultiAgentAlgorithm(make_vec_env(game, 3, seed=0, **env), specs, league, n_steps=8, seed=3)
    for _ in range(iterations):
        algorithm.train_iteration()
    return algorithm


# --- Who plays whom --------------------------------------------------------------------------------------------------


def drawn(league: League, episodes: int = 2000) -> Counter[tuple[str, ...]]:
    league.candidates(AGENTS)
    found = (league.assign(0, number, assignment_rng(7, 0, number)) for number in range(episodes))
    return Counter(tuple(chosen[agent] for agent in AGENTS) for chosen in found)


def test_a_share_of_the_episodes_is_against_the_pool_in_either_seat() -> None:
    league = League({"main": AGENTS}, snapshot_every=1, self_play=0.25, sampling="uniform")
    assert drawn(league, 50) == {("main", "main"): 50}  # as long as the pool is empty
    for number in (1, 2):
        league.members[f"main@{number}"] = Member(f"main@{number}", "main", number)
    counts = drawn(league)
    assert counts["main", "main"] == pytest.approx(500, abs=80)
    for member in ("main@1", "main@2"):
        for pair in (("main", member), (member, "main")):
            assert counts[pair] == pytest.approx(375, abs=80)
    assert len(counts) == 5


def test_opponents_are_drawn_by_the_share_of_points_against_them() -> None:
    """With four games each: rates (4 + 0.5) / 5 = 0.9 and (0 + 0.5) / 5 = 0.1."""
    rates = np.array([0.9, 0.1])
    np.testing.assert_allclose(SAMPLING["hard"](rates), [0.01, 0.81])
    np.testing.assert_allclose(SAMPLING["even"](rates), [0.09, 0.09])
    np.testing.assert_allclose(SAMPLING["recent"](rates), [0.5, 1.0])
    league = League({"main": AGENTS}, snapshot_every=1, self_play=0.0)
    for number in (1, 2):
        league.members[f"main@{number}"] = Member(f"main@{number}", "main", number)
    league.scores["main"] = {"main@1": Score(4, 4), "main@2": Score(4, 0)}
    counts = drawn(league)
    assert counts["main", "main@1"] + counts["main@1", "main"] == pytest.approx(2000 * 0.01 / 0.82, abs=20)


def test_a_policy_for_each_side_meets_members_of_the_other_one() -> None:
    league = League({"a": [AGENTS[0]], "b": [AGENTS[1]]}, snapshot_every=1, self_play=0.5)
    league.members["b@1"] = Member("b@1", "b", 1)
    assert set(drawn(league)) == {("a", "b"), ("a", "b@1")}


def test_several_policies_may_play_a_side() -> None:
    league = League({"a": AGENTS, "b": AGENTS}, snapshot_every=1, self_play=1.0)
    assert set(drawn(league)) == {(one, other) for one in "ab" for other in "ab"}
    league = League({"a": AGENTS[:1], "b": AGENTS[:1], "c": AGENTS[1:]}, snapshot_every=1, self_play=0.5)
    league.members["b@1"] = Member("b@1", "b", 1)
    assert set(drawn(league)) == {("a", "c"), ("b", "c"), ("b@1", "c")}


def test_an_exploiter_plays_against_the_present_policy() -> None:
    league = League({"main": AGENTS}, snapshot_every=1, self_play=0.0, exploiters={"rival": {"of": "main"}})
    assert set(drawn(league)) == {("main", "main"), ("main", "rival"), ("rival", "main")}
    league.members["main@1"] = Member("main@1", "main", 1)
    assert ("rival", "main@1") not in drawn(league)


def episode(first: str, second: str, paid: tuple[float, float]) -> Episode:
    returns = dict(zip(AGENTS, paid, strict=True))
    return Episode(0, 5, returns, dict.fromkeys(AGENTS, 5), {}, 1.0, dict(zip(AGENTS, (first, second), strict=True)))


def test_results_are_counted_for_the_side_that_learns() -> None:
    league = League({"main": AGENTS}, snapshot_every=1)
    league.candidates(AGENTS)
    league.members["old"] = Member("old", "main", 1)
    for first, second, paid in (("main", "old", (2.0, 1.0)), ("old", "main", (3.0, 3.0)), ("main", "main", (9.0, 0.0))):
        league.record(episode(first, second, paid))
    score = league.scores["main"]["old"]
    assert score == Score(games=1.99, won=0.99, drawn=1.0, paid=pytest.approx(0.99 * 2 + 3), played=2)
    assert score.points == pytest.approx(1.49)
    assert league.scores.keys() == {"main"}


def test_where_returns_do_not_oppose_each_other_a_policy_wins_above_its_own_mean() -> None:
    league = League({"a": [AGENTS[0]], "b": [AGENTS[1]]}, snapshot_every=1)
    league.candidates(AGENTS)
    league.members["b@1"] = Member("b@1", "b", 1)
    for paid in (10.0, 12.0, 9.0):
        league.record(episode("a", "b@1", (paid, 100.0)))
    score = league.scores["a"]["b@1"]
    assert (score.played, score.won, score.drawn) == (3, pytest.approx(0.99), pytest.approx(0.99**2))


def test_points_of_old_snapshots_are_those_they_had() -> None:
    scores = {"main": {"main@1": Score(4, 3)}, "main@1": {"x": Score(2, 0, 1)}}
    points = points_matrix(["main", "main@1", "x"], scores)
    np.testing.assert_array_equal(points, [[0, 3, 0], [1, 0, 0.5], [0, 1.5, 0]])


def test_the_weakest_of_the_older_half_but_the_first_leaves_a_full_pool() -> None:
    pool = [Member(name, "main", number) for number, name in enumerate("abcd")]
    assert to_evict(pool, 3, {"a": -99.0, "b": -5.0, "c": -90.0, "d": 0.0}) == ["b"]
    assert to_evict([*pool, Member("e", "main", 5), Member("f", "main", 6)], 5, {"b": 1.0, "c": 0.0}) == ["c"]
    assert to_evict(pool, 1, {}) == ["a", "b", "c"]
    assert to_evict(pool, 4, {}) == []


# --- Trainings -------------------------------------------------------------------------------------------------------


def test_a_league_without_opponents_yet_is_plain_self_play() -> None:
    league = trained(League({"main": AGENTS}, snapshot_every=99), iterations=3)
    plain = trained(League({"main": AGENTS}, snapshot_every=99, self_play=1.0), iterations=0)
    plain = MultiAgentAlgorithm(plain.env, {"main": PolicySpec(PPO, **ON)}, dict.fromkeys(AGENTS, "main"), seed=3)
    for _ in range(3):
        plain.train_iteration()
    assert same_weights(league, plain)


NORMALISED = PolicySpec(PPO, **ON, normalize_observations=True, frame_stack=2)
SPECS: Mapping[str, tuple[str, PolicySpec]] = {
    "in a batch": (RPS, PolicySpec(PPO, **ON)),
    "masked": ("classic/tictactoe_v3", PolicySpec(MaskablePPO, **ON)),
    "normalised": ("classic/tictactoe_v3", NORMALISED),
    "recurrent": (RPS, PolicySpec(RecurrentPPO, **ON | {"policy_kwargs": {"net_arch": [4], "lstm_hidden_size": 4}})),
    "dqn": (RPS, PolicySpec(DQN, learning_starts=8, batch_size=4, buffer_size=200, policy_kwargs={"net_arch": [4]})),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_training_with_a_pool_goes_on_exactly(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"snapshot_every": 1, "pool_size": 2, "self_play": 0.2, "opponents": ["random"]}
    game, spec = SPECS[name]
    agents = AGENTS if game == RPS else ("player_1", "player_2")
    whole, half = (trained(League({"main": agents}, **settings), spec, number, game) for number in (6, 3))
    half.save(tmp_path / "saved")
    league, env = League({"main": agents}, **settings), make_vec_env(game, 3, seed=0)
    rest = MultiAgentAlgorithm.load(tmp_path / "saved", env, policy_mapping_fn=league)
    for _ in range(3):
        result = rest.train_iteration()
    assert same_weights(whole, rest)
    guests = [each.get_state()[0]["env"]["guests"] for each in (whole, rest)]
    for part in ("names", "members", "actors"):  # in the same order, whatever was played before
        assert [*guests[0][part]] == [*guests[1][part]] == sorted(guests[0][part])
    assert repr(guests[0]) == repr(guests[1])
    assert result["league"]["pool_size"] == 3
    assert {*result["league"]["against"]["main"]} <= {"random", "main@1", "main@4", "main@5", "main@6"}


def test_a_damaged_pool_is_refused(tmp_path: Path) -> None:
    algorithm = trained(League({"main": AGENTS}, snapshot_every=1), iterations=2)
    algorithm.save(tmp_path / "saved")

    def damaged(change: Callable[[dict[str, Any]], object], words: str) -> None:
        checkpoint = read_checkpoint(tmp_path / "saved")
        change(checkpoint.state["env"])
        with pytest.raises(CheckpointError, match=words):
            algorithm.set_state(checkpoint)

    first = "policy.action_net.bias"
    damaged(lambda env: env["assignment"]["own"]["members"]["main@1"]["weights"].pop(first), first)
    damaged(lambda env: env["assignment"]["own"]["members"]["main@1"].update(policy="x"), "policy is 'x'")
    damaged(lambda env: env["assignment"]["own"]["scores"].pop("main"), "scores")
    for wrong in ([1e300, 0, 0, 0, 1], [0.0, 0, 0, 0, 0], [101.0, 0, 0, 0, 1], [2.0, 1e300, 0, 0, 1]):
        damaged(lambda env, wrong=wrong: env["assignment"]["own"]["scores"]["main"].update(x=wrong), "scores/main/x")
    damaged(lambda env: env["guests"].update(plays=env["guests"]["plays"] + 9), "plays is an array")
    damaged(lambda env: env["guests"].update(names=["nobody"]), "names")


@pytest.mark.parametrize("spec", [PolicySpec(PPO, **ON), SPECS["dqn"][1]], ids=["in a batch", "alone"])
def test_shards_go_on_exactly(spec: PolicySpec, tmp_path: Path) -> None:
    def made() -> tuple[League, MultiAgentVecEnv]:
        env = make_sharded_vec_env(RPS, 4, 2, seed=0)
        return League({"main": AGENTS}, snapshot_every=1, self_play=0.2, pool_size=4), env

    league, env = made()
    whole = MultiAgentAlgorithm(env, {"main": spec}, league, n_steps=8, seed=3)
    for _ in range(6):
        whole.train_iteration()
        if whole.iteration == 3:
            whole.save(tmp_path / "saved")
    league, env = made()
    rest = MultiAgentAlgorithm.load(tmp_path / "saved", env, policy_mapping_fn=league)
    for _ in range(3):
        result = rest.train_iteration()
    assert same_weights(whole, rest)
    assert result["league"]["against"]["main"]


def test_snapshots_in_a_batch_act_as_their_policies_do() -> None:
    algo = trained(League({"main": AGENTS}, snapshot_every=9))
    policy: Any = algo.policies["main"]
    batch, members, rng = SnapshotBatch(policy), [], np.random.default_rng(0)
    seen = np.array([0, 1, 2, 3, 0, 1])
    playing = np.array([2, 0, 2, 1, 2, 0])
    logits = np.zeros((6, 3))
    for number in range(3):
        with th.no_grad():
            for parameter in policy.policy.parameters():
                parameter.copy_(th.from_numpy(rng.normal(size=tuple(parameter.shape)).astype(np.float32)))
            own = policy.policy.get_distribution(policy.policy.obs_to_tensor(seen)[0]).distribution.logits
        members.append(Member(str(number), "main", number, weights(policy)))
        logits[playing == number] = own.numpy()[playing == number]
    batch.set_members(members)
    outputs = batch._forward(batch._features(seen), playing)
    np.testing.assert_allclose(outputs - np.logaddexp.reduce(outputs, axis=1)[:, None], logits, atol=1e-5)


def test_an_exploiter_joins_the_pool_and_begins_anew() -> None:
    league = League({"main": AGENTS}, snapshot_every=9, exploiters={"rival": {"of": "main", "reset_every": 2}})
    algorithm = trained(league)
    first = weights(algorithm.policies["rival"])
    algorithm.train_iteration()
    assert not all(np.array_equal(first[key], own) for key, own in weights(algorithm.policies["rival"]).items())
    algorithm.train_iteration()
    assert all(np.array_equal(first[key], own) for key, own in weights(algorithm.policies["rival"]).items())
    assert list(league.members) == ["rival@2"]


# --- Files and code --------------------------------------------------------------------------------------------------


def test_members_are_files_that_commands_load(tmp_path: Path) -> None:
    settings = {"league.snapshot_every": 1, "league.pool_size": 2, "n_steps": 8, "batch_size": 8, "n_envs": 2}
    run = marl_sb3.train(RPS, timesteps=128, seed=1, settings=settings, run_dir=tmp_path / "run")
    listed = json.loads((tmp_path / "run" / "league" / "members.json").read_text())
    newest = listed[-1]["name"]
    folders = {path.name for path in (tmp_path / "run" / "league").iterdir()}
    assert folders == {"members.json", *(member["name"] for member in listed)}  # who has left the pool has no folder
    loaded, own = load_policies(tmp_path / "run" / "league" / newest), run.algorithm.policies["shared"]
    assert all(np.array_equal(weights(own)[key], array) for key, array in weights(loaded.policies["shared"]).items())
    assert "is the best by league/rating_mean" in str(load_policies(run.folder).checkpoint_why)
    against = {
        "checkpoints.metric": "env_runners/episode_return_mean",
        "league.opponents": [str(tmp_path / "run" / "league" / newest)],
        "league.self_play": 0.0,
    }
    other = marl_sb3.train(RPS, timesteps=128, seed=1, settings=settings | against, run_dir=tmp_path / "other")
    assert f"run.{newest}" in other.algorithm.assignment.scores["shared"]
    assert "is the latest: others than the policies that learn" in str(load_policies(other.folder).checkpoint_why)
    assert other.files.checkpoints.opposed() is None  # nobody has compared their returns


def test_a_folder_that_is_no_member_is_not_replaced(tmp_path: Path) -> None:
    league = League({"main": AGENTS}, folder=tmp_path, snapshot_every=1)
    (tmp_path / "main@2").mkdir()
    (tmp_path / "main@2" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="main@2 exists and is not a checkpoint; accepted: a new or an empty folder"):
        trained(league, iterations=2)
    assert (tmp_path / "main@2" / "thesis.txt").exists()


def test_thousands_of_opponents_of_one_name_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = SimpleNamespace(checkpoint="", policies=(), policy_of=AGENTS)
    monkeypatch.setattr("marl_sb3.league.league.load_policies", lambda _: bundle)
    sources = [*(f"{n}/a" for n in range(20_000)), "b/a-3", "minimax", "minimax", "run/league/main@3", "c/main"]
    names = [*League({"main": AGENTS}, opponents=sources).opponents]
    assert names[:3] == ["a", "a-2", "a-3"]
    assert names[-6:] == ["a-20000", "a-3-2", "minimax", "minimax-2", "run.main@3", "main-2"]


def test_code_plays_and_its_faults_are_named() -> None:
    league = League({"main": AGENTS}, opponents=[f"{__name__}:Rock"], self_play=0.0)
    trained(league, iterations=3)
    assert league.scores["main"].keys() == {f"{__name__}:Rock"}
    for kind, words in (("Raises", "it raised ValueError: no more"), ("Illegal", "it returned 3; accepted: an action")):
        where = r"env \d, episode 0, step 1 of it: " if kind == "Illegal" else r"env \d, episode \d, step \d of it: "
        with pytest.raises(HookError, match=rf"opponent .*{kind}, agent 'player_\d', {where}{words}"):
            trained(League({"main": AGENTS}, opponents=[f"{__name__}:{kind}"], self_play=0.0), iterations=1)


def test_a_file_called_like_a_policy_takes_no_place_of_it(tmp_path: Path) -> None:
    path = trained(League({"main": AGENTS}, snapshot_every=9)).save(tmp_path / "main")
    league = League({"main": AGENTS}, opponents=[str(path)], self_play=0.0)
    assert set(drawn(league)) == {("main", "main-2"), ("main-2", "main")}


def test_an_opponent_from_another_league_is_the_policy_that_its_name_says(tmp_path: Path) -> None:
    hunted = {"snapshot_every": 9, "exploiters": {"hunter": {"of": "main", "reset_every": 2}}}
    other = trained(League({"main": AGENTS}, folder=tmp_path / "run" / "league", **hunted), iterations=2)
    league = League({"main": AGENTS}, opponents=[str(tmp_path / "run" / "league" / "hunter@2")])
    (bundle,) = league.bundles.values()
    assert [*bundle.policies] == [AGENTS[0]]  # as `combine_policies` names it
    loaded = load_policies(tmp_path / "run" / "league" / "hunter@2")
    assert loaded.policy_of == dict.fromkeys(AGENTS, "hunter")
    saved = loaded.policies
    assert bundle.policies[AGENTS[0]] is not saved["hunter"]
    assert all(
        np.array_equal(weights(bundle.policies[AGENTS[0]])[key], array)
        for key, array in weights(saved["hunter"]).items()
    )
    assert other.iteration == 2


def test_each_policy_begins_with_a_snapshot_where_points_decide() -> None:
    league = League({"a": AGENTS[:1], "b": AGENTS[1:]}, snapshot_above=0.7)
    assert league.is_due("a", 1)
    league.add(Member("a@1", "a", 1))
    assert league.is_due("b", 1)
    assert not league.is_due("a", 2)


def test_nothing_is_left_of_an_exploiter_that_begins_anew() -> None:
    league = League({"main": AGENTS}, snapshot_every=1, exploiters={"rival": {"of": "main"}})
    league.record(episode("main", "rival", (2.0, 1.0)))
    league.add(Member("main@1", "main", 1))
    assert league.members["main@1"].scores.keys() == {"rival"}
    league.begin_anew("rival", 2)
    assert not league.scores["main"]
    assert not league.scores["rival"]
    assert not league.members["main@1"].scores


WRONG: Mapping[str, tuple[dict[str, Any], str]] = {
    "nobody": ({}, "there are no opponents; accepted: snapshot_every, snapshot_above or opponents"),
    "unknown": ({"pool": 3}, "unknown setting 'pool'; accepted: snapshot_every"),
    "share": ({"snapshot_every": 1, "self_play": 2}, "league.self_play is 2; accepted: a number"),
    "sides": ({"snapshot_every": 1, "sides": [["player_0"]]}, "accepted: each of player_0, player_1 once"),
    "exploiter": ({"snapshot_every": 1, "exploiters": {"x": {"of": "y"}}}, "exploiters.x.of is 'y'; accepted: main"),
    "one side": ({"snapshot_every": 1, "sides": [list(AGENTS)]}, "there is one side"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_are_refused(name: str) -> None:
    settings, words = WRONG[name]
    with pytest.raises(ConfigError, match=words):
        League({"main": AGENTS}, **settings).candidates(AGENTS)


def test_an_opponent_of_another_game_is_refused(tmp_path: Path) -> None:
    arena = MultiAgentAlgorithm(make_vec_env("arena", 1, seed=0), "shared", seed=0, n_steps=8, batch_size=8)
    path = arena.save(tmp_path / "arena")
    with pytest.raises(ConfigError, match="opponent arena plays agent1, agent2; the env has player_0, player_1"):
        trained(League({"main": AGENTS}, opponents=[str(path)]))
