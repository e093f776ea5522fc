"""Matches: who plays whom, hand-worked returns and points, cycles, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from small_runs import start
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import PPO, MultiAgentAlgorithm, PolicySpec, load_policies, make_vec_env
from marl_sb3.errors import CheckpointError, ConfigError, HookError
from marl_sb3.match import main
from marl_sb3.report import main as report
from marl_sb3.tools.viewing.match_page import sentences, tables
from marl_sb3.tools.viewing.matching import Match, Points

PAY = {
    # The highest number wins what the others lose.
    "duel": lambda numbers, drawn: numbers - numbers.mean(),
    # What the env draws, and ten times the own number on the first side; the others get their number.
    "apart": lambda numbers, drawn: drawn + numbers * ([10.0] + [1.0] * (len(numbers) - 1)),
    "uphill": lambda numbers, drawn: numbers - numbers.mean() + [100.0, -100.0],
    # The first two win, and are paid as much for what the first one does.
    "team": lambda numbers, drawn: np.array([1.0, 1.0, -2.0]) * (50.0 + numbers[0]),
}


class Numbers(ScriptedEnv):
    """Each agent chooses a number below its limit; an episode lasts up to three steps, and the last one is paid."""

    def __init__(self, pay: str = "duel", limits: dict[str, int] | None = None) -> None:
        self.pay, self.limits = PAY[pay], limits or {"left": 10, "right": 10}
        super().__init__(dict.fromkeys(self.limits, (3, "terminated")))

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0.0, 100.0, (1,))

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(self.limits[agent])

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.drawn = float(np.random.default_rng(seed).integers(100))
        return super().reset(seed, options)

    def observation(self, agent: str) -> Any:
        return np.array([self.drawn], np.float32)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        numbers = np.array([float(actions[agent]) for agent in self.agents])
        self.is_over = self.step_count + 1 > self.drawn * (1 + numbers[0]) % 3
        self.paid = dict(zip(self.agents, (self.pay(numbers, self.drawn) * self.is_over).tolist(), strict=True))
        return super().step(actions)

    def _end(self, agent: str) -> str:
        return "terminated" if self.is_over else ""

    def _reward(self, agent: str) -> float:
        return float(self.paid[agent])


class Fewer(Numbers):
    """The last agent takes no part in some of the episodes."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        shown, infos = super().reset(seed, options)
        self.present = self.agents = self.agents[: -1 if self.drawn % 2 else None]
        return {agent: shown[agent] for agent in self.agents}, {agent: infos[agent] for agent in self.agents}


class Always:
    """Takes one number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def act(self, observation: Any, mask: Any, rng: np.random.Generator) -> int:
        return self.number


class Fails:
    """Raises an exception."""

    def act(self, observation: Any, mask: Any, rng: np.random.Generator) -> int:
        raise KeyError("wheel")


THREE = {"weak": Always(0), "strong": Always(9), "middle": Always(5)}


def played(players: Any = THREE, pay: str = "duel", limits: dict[str, int] | None = None, **how: Any) -> Match:
    return marl_sb3.match(players, env=lambda: Numbers(pay, limits), **{"episodes": 6, "n_envs": 4, **how})


def means(table: list[list[Any]]) -> list[list[float | None]]:
    return [[None if cell is None else cell.mean for cell in row] for row in table]


# --- Numbers ---------------------------------------------------------------------------------------------------------


def test_the_stronger_player_wins_on_both_sides_and_is_rated_higher() -> None:
    found = played()
    weak, strong, middle = (each.rating for each in found.players)
    assert weak is not None
    assert strong is not None
    assert middle is not None
    assert strong.rating > middle.rating > weak.rating
    assert found.points[0][0] is None
    points = found.points[1][2]
    assert points is not None
    assert (points.won, points.drawn, points.lost, points.share) == (12, 0, 0, 1.0)  # 6 in each order
    n, z2 = 12, 1.959964**2
    assert points.ci95 == pytest.approx((n / (n + z2), 1.0))  # Wilson's for a share of 1
    assert means(found.returns["left"]) == [[0.0, -4.5, -2.5], [4.5, 0.0, 2.0], [2.5, -2.0, 0.0]]
    assert found.opposed == "the agents' returns oppose each other: their sum is always about 0"
    assert found.unfair is None
    assert found.cycles == []
    of_players, of_points = tables(found, intervals=False)
    assert [(row[0], row[1]) for row in of_players.rows] == [("1", "strong"), ("2", "middle"), ("3", "weak")]
    assert of_points.head[2:] == ["1", "2", "3"]
    assert of_points.rows[0] == ["1", "strong", "", "100", "100"]


def test_the_same_return_has_the_same_colour_in_all_heat_maps(tmp_path: Path) -> None:
    page = played().write(tmp_path / "x.html").read_text()
    assert re.findall(r'"zmax":([\d.]+),"zmin":([-\d.]+)', page) == [("100.0", "0.0")] + 2 * [("4.5", "-4.5")]
    assert re.findall(r'"texttemplate":"(.*?)"', page)[:3] == ["%{z:.0f}"] + 2 * ["%{z:.2f}"]


def test_equal_numbers_are_a_draw() -> None:
    points = played({"one": Always(3), "two": Always(3), "zero": Always(0)}).points[0][1]
    assert points is not None
    assert (points.won, points.drawn, points.lost, points.share) == (0, 12, 0, 0.5)


def test_each_player_takes_each_side_in_the_same_episodes() -> None:
    """The env draws a number for each episode, which is a part of every return."""
    players = {"low": Always(1), "high": Always(4), "top": Always(5)}
    found = played(players, "apart")
    drawn = found.returns["right"][0][0]
    assert drawn is not None
    mean = drawn.mean - 1
    assert mean > 0
    assert means(found.returns["left"]) == [3 * [mean + 10], 3 * [mean + 40], 3 * [mean + 50]]
    assert means(found.returns["right"]) == [3 * [mean + 1], 3 * [mean + 4], 3 * [mean + 5]]
    low, high, _ = found.players
    assert (low.own["left"].mean, low.against_others["left"].mean) == (mean + 10, mean + 10)
    others = high.against_others["right"]  # means over episodes of the same seed
    assert (others.n, others.sd) == (6, pytest.approx(drawn.sd))
    assert low.rating is None
    assert "so there are no ratings" in sentences(found)[-1]
    again, other = (played(players, "apart", seed=seed) for seed in (0, 1))
    assert again == found
    assert means(other.returns["left"]) != means(found.returns["left"])


def test_one_of_three_sides_is_taken_against_two() -> None:
    limits = {"a": 10, "b": 10, "c": 10}
    found = played({"weak": Always(0), "strong": Always(9)}, limits=limits)
    assert list(found.sides) == ["a", "b", "c"]
    assert means(found.returns["b"]) == [[0.0, -6.0], [6.0, 0.0]]  # 0 - (0 + 9 + 9) / 3, 9 - (9 + 0 + 0) / 3
    points = found.points[1][0]
    assert points is not None
    assert (points.won, points.lost) == (36, 0)  # alone on each side, and on two against each
    together = played({"weak": Always(0), "strong": Always(9)}, limits=limits, sides=[["a", "c"], []])
    assert together.sides == {"a,c": ["a", "c"], "b": ["b"]}
    assert means(together.returns["a,c"]) == [[0.0, -3.0], [3.0, 0.0]]


def test_who_takes_no_part_in_an_episode_neither_wins_nor_loses_it() -> None:
    found = marl_sb3.match(THREE, env=lambda: Fewer("duel", {"a": 10, "b": 10, "c": 10}), episodes=6, n_envs=3)
    assert found.opposed == "the agents' returns oppose each other: their sum is always about 0"
    points, alone = found.points[1][0], found.players[0].against_others["c"]
    assert points is not None
    assert (points.won, points.drawn, points.lost) == (24 + 2 * alone.n, 0, 0)
    assert 0 < alone.n < 6


def test_where_one_side_always_wins_both_orders_of_a_seed_count_together() -> None:
    found = played(pay="uphill")
    assert found.unfair == "left"
    assert means(found.returns["left"])[0] == [100.0, 95.5, 97.5]
    points = [[None if cell is None else (cell.won, cell.drawn, cell.lost) for cell in row] for row in found.points]
    assert points == [[None, (0, 0, 6), (0, 0, 6)], [(6, 0, 0), None, (6, 0, 0)], [(6, 0, 0), (0, 0, 6), None]]
    assert "side left has won nearly every episode that was not drawn, with any player" in sentences(found)[-1]


def test_luck_against_all_others_makes_the_interval_of_a_rating_wider() -> None:
    """The random player draws the same numbers against all, who are one and the same: 40 games tell as much as 160."""
    alike = {name: Always(5) for name in "abcd"}
    *four, drawing = (each.rating for each in played(alike, opponents=["random"], episodes=20).players)
    assert drawing is not None
    assert four[0] is not None
    assert np.diff(drawing.ci95) > 1.6 * np.diff(four[0].ci95)


def test_a_team_that_is_apart_is_noted() -> None:
    limits = {"a": 10, "b": 10, "c": 10}
    words = "the side that a single player plays has won or lost nearly every episode that was not drawn"
    assert played(pay="team", limits=limits).notes[0].startswith(f"{words}, so points do not compare players; --agents")
    for found in (played(limits=limits), played(pay="team", limits=limits, sides=[["a", "b"]])):
        assert not [note for note in found.notes if words in note]


def test_the_cycle_of_rock_paper_and_scissors_is_found(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The random player wins as often as it loses, and is part of no certain cycle."""
    players = {"rock": Always(0), "paper": Always(1), "scissors": Always(2)}
    found = marl_sb3.match(players, opponents=["random"], env="classic/rps-v2", episodes=20, n_envs=20)
    certain = [cycle.players for cycle in found.cycles if cycle.certain]
    assert certain == [["rock", "scissors", "paper"]]
    assert [cycle.certain for cycle in found.cycles] == sorted((c.certain for c in found.cycles), reverse=True)
    ratings = [each.rating.rating for each in found.players if each.rating is not None]
    assert max(ratings) - min(ratings) < 100
    from marl_sb3.tools.viewing.match_page import show_match

    for columns in ("60", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        show_match(replace(found, search=3, deterministic=False, notes=[*found.notes, "\x1b[31m"]))
        shown = capsys.readouterr().out
        assert ("(91" in shown) == (columns == "80")  # no cell is folded for its interval
    assert "cycle: rock > scissors > paper > rock: each wins against the next one" in shown
    assert "in each order, sampled actions, 3 positions looked at before each, seed 0" in shown
    assert "in 9 of 16 games, the 20 episodes are one and the same, although intervals count them all" in shown
    assert r"note: \x1b[31m" in shown


class Hidden(Numbers):
    """The env draws as always, and shows nothing of it; an episode is one step."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        shown, infos = super().reset(seed, options)
        self.drawn *= 3
        return {agent: np.zeros_like(seen) for agent, seen in shown.items()}, infos

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        shown, *others = super().step(actions)
        return {agent: np.zeros_like(seen) for agent, seen in shown.items()}, *others


@pytest.mark.parametrize(("pay", "is_same"), [("duel", True), ("apart", False)])
def test_episodes_that_differ_in_rewards_alone_are_not_the_same(pay: str, is_same: bool) -> None:
    found = marl_sb3.match({"three": Always(3), "five": Always(5)}, env=lambda: Hidden(pay), episodes=6, n_envs=2)
    assert any("the 6 episodes are one and the same" in note for note in found.notes) == is_same


# --- Players ---------------------------------------------------------------------------------------------------------


def saved(path: Path, limits: dict[str, int] | None = None, **how: Any) -> Path:
    env = make_vec_env(lambda: Numbers(limits=limits), n_envs=2, seed=0)
    algo = MultiAgentAlgorithm(env, seed=0, n_steps=8, batch_size=8, **how)
    algo.save(path)
    env.close()
    return path


def test_saved_policies_play_and_one_that_sees_who_it_is_takes_each_side(tmp_path: Path) -> None:
    spec = {"one": PolicySpec(PPO, agent_indicator=True, policy_kwargs={"net_arch": [4]})}
    path = saved(tmp_path / "saved", policies=spec, policy_mapping_fn=dict.fromkeys(("left", "right"), "one"))
    found = played({"saved": path, "bundle": marl_sb3.load_policies(path), "strong": Always(9)})
    assert [each.sides for each in found.players] == [["left", "right"]] * 3
    assert means(found.returns["left"])[0][:2] == means(found.returns["left"])[1][:2]
    assert found.players[0].checkpoint == found.players[1].checkpoint
    likeliest, sampled = (played({"saved": path, "strong": Always(9)}, deterministic=how) for how in (True, False))
    assert means(likeliest.returns["left"])[0][1] == means(found.returns["left"])[0][2]
    assert means(sampled.returns["left"])[0] != means(likeliest.returns["left"])[0]


def test_a_player_takes_the_sides_alone_whose_spaces_it_was_trained_for(tmp_path: Path) -> None:
    path = saved(tmp_path / "saved", policies="per_agent")
    found = played({"run": path, "zero": Always(0)}, limits={"left": 10, "right": 5})
    assert found.players[0].sides == ["left"]
    words = "the env has space Discrete(5) for agent 'right'; its policy: Discrete(10)"
    assert found.notes[0] == f"run cannot play right: {words}"
    assert means(found.returns["right"])[0] == [None, None]
    assert found.players[0].own == {}
    assert found.unfair is None  # the one who plays left alone has won there, and not the side
    assert [[cell is None or (cell.won, cell.lost) for cell in row] for row in found.points] == [
        [True, (6, 0)],
        [(0, 6), True],
    ]
    with pytest.raises(ConfigError, match="search: this env is another kind"):
        played({"run": path, "zero": Always(0)}, limits={"left": 10, "right": 5}, search=1)
    with pytest.raises(ConfigError, match=r"\(left, right\): one plays left, two plays left; accepted: also a player"):
        played({"one": path, "two": load_policies(path)}, limits={"left": 10, "right": 5})
    players = {"run": path, "zero": Always(0), "one": Always(1)}
    unfair = played(players, "uphill", limits={"left": 10, "right": 5})
    assert unfair.points[0] == [None, None, None]  # which takes both orders
    assert unfair.points[2][1] is not None
    shared = saved(tmp_path / "shared")
    with pytest.raises(ConfigError, match=r"^shared can play no side of this game: the env has space Disc"):
        played([shared, path], limits={"left": 7, "right": 5})
    others = saved(tmp_path / "others", limits={"a": 10, "b": 10})
    with pytest.raises(
        ConfigError, match=r"others can play no side .* no policy of it is for agent left, but for a, b"
    ):
        played([others, path])


def test_policies_that_share_agents_differently_need_the_sides(tmp_path: Path) -> None:
    limits = {"a": 10, "b": 10, "c": 10}
    spec = {name: PolicySpec(PPO, policy_kwargs={"net_arch": [4]}) for name in ("x", "y")}
    pairs = [{"a": "x", "b": "x", "c": "y"}, {"a": "x", "b": "y", "c": "y"}]
    paths = [
        saved(tmp_path / str(number), limits, policies=spec, policy_mapping_fn=mapping)
        for number, mapping in enumerate(pairs)
    ]
    with pytest.raises(ConfigError, match="checkpoints is 4; accepted: a string"):
        played(paths, limits=limits, checkpoints=4)
    with pytest.raises(ConfigError, match=r"differently: a,b against c, and a against b,c; accepted: --agents A,B"):
        played(paths, limits=limits)
    found = played({"one": paths[0], "zero": Always(0)}, limits=limits)
    assert found.sides == {"x": ["a", "b"], "c": ["c"]}
    bundle = marl_sb3.load_policies(paths[0])
    part = played({"x": marl_sb3.combine_policies(dict.fromkeys("ab", bundle)), "zero": Always(0)}, limits=limits)
    assert part.sides == {"a,b": ["a", "b"], "c": ["c"]}
    assert part.players[0].sides == ["a,b"]


# --- Runs and the command --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, and a league of two members."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    start(str(folder), 4, policies="per_agent").close()
    listed = []
    for iteration, rating in ((2, 10.0), (4, -10.0)):
        name = f"agent1@{iteration}"
        shutil.copytree(folder / "checkpoints" / f"ckpt-{iteration:06d}", folder / "league" / name)
        listed.append({"name": name, "policy": "agent1", "iteration": iteration, "rating": rating})
    (folder / "league" / "members.json").write_text(json.dumps(listed))
    return folder


def test_all_checkpoints_and_members_play_and_the_report_shows_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run / "match.json"
    assert main([str(run), "--checkpoints", "all", "--episodes", "2", "--json", "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(out.read_text())
    found = Match.from_json(out.read_bytes())
    assert json.loads(json.dumps(found.to_plain())) == printed
    assert [each.name for each in found.players] == ["run@2", "run@4", "run/agent1@2", "run/agent1@4"]
    assert [each.sides for each in found.players] == [["agent1", "agent2"]] * 2 + [["agent1"]] * 2
    assert found.returns["agent1"][0][0] is not None
    assert found.returns["agent1"][0] == [*found.returns["agent1"][0][:2], None, None]
    assert means(found.returns["agent1"])[2][:2] == means(found.returns["agent1"])[0][:2]  # the same policy
    page = found.write(run.parent / "match.html").read_text()
    assert "<h2>Mean return of agent1</h2>" in page
    assert report([str(run), "--out", str(run.parent / "report.html")]) == 0
    assert "<h2>Match: Mean return of agent1</h2>" in (run.parent / "report.html").read_text()
    out.write_text(out.read_text().replace('"seed"', '"sead"'))
    assert report([str(run), "--out", str(run.parent / "report.html")]) == 0
    assert (
        "match.json is no result of a match: Object missing required field" in (run.parent / "report.html").read_text()
    )
    out.unlink()
    huge = replace(found, points=[4 * [Points(10**99, 0, 0, 1.0, (0.0, 1.0))]] * 4)  # no float is as large
    for text in (b"\xb1", json.dumps(huge.to_plain()).encode()):
        with pytest.raises(ConfigError, match=r"no result of a match: .* accepted: what match --json prints"):
            Match.from_json(text)


def test_the_best_of_a_league_is_the_member_with_the_highest_rating_if_it_plays_all_sides(
    run: Path, tmp_path: Path
) -> None:
    member, how = run / "league" / "agent1@4", {"checkpoints": "best", "opponents": ["random"], "episodes": 1}
    apart = marl_sb3.match([run, member], **how).players
    assert [each.checkpoint for each in apart] == [load_policies(run, "best").checkpoint, "agent1@4", None]
    assert [each.sides for each in apart] == [["agent1", "agent2"], ["agent1"], ["agent1", "agent2"]]
    start(str(tmp_path / "run"), 4).close()
    shutil.copytree(tmp_path / "run" / "checkpoints" / "ckpt-000002", tmp_path / "run" / "league" / "shared@2")
    listed = [{"policy": "shared", "iteration": number, "rating": -number} for number in (2, 4)]
    (tmp_path / "run" / "league" / "members.json").write_text(json.dumps(listed))
    assert [each.name for each in marl_sb3.match(tmp_path / "run", **how).players] == ["run/shared@2", "random"]


def test_a_run_in_python_is_a_player_whose_env_is_taken(run: Path) -> None:
    loaded = marl_sb3.load_run(run, "2")
    found = marl_sb3.match([loaded], opponents=["random"], episodes=1)
    loaded.close()
    assert (found.env, found.players[0].name, found.players[0].checkpoint) == ("arena", "run", "ckpt-000002")


def test_players_of_one_name_are_refused_and_none_is_left_out(run: Path, tmp_path: Path) -> None:
    loaded, other = marl_sb3.load_run(run, "2"), marl_sb3.load_run(shutil.copytree(run, tmp_path / "run"), "4")
    found = marl_sb3.match([other, run / "league" / "agent1@4", loaded], episodes=1)
    assert [each.name for each in found.players] == [str(tmp_path / "run"), str(run / "league" / "agent1@4"), str(run)]
    for each in (loaded, other):
        each.close()
    named = shutil.copytree(run, run.parent / "random")
    found = marl_sb3.match(named, opponents="random", episodes=1)
    assert [each.name for each in found.players] == [named.as_posix(), "random"]
    with pytest.raises(ConfigError, match="two players are called 'random'; accepted: different names"):
        marl_sb3.match({"random": run}, opponents=["random"], episodes=1)


def test_another_length_of_episodes_in_one_of_the_runs_is_noted(run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(run, tmp_path / "copied")
    config = (copied / "config.yaml").read_text()
    for before, after in (("max_timesteps: 15", "max_timesteps: 16"), ("episode_horizon: null", "episode_horizon: 9")):
        config = config.replace(before, after)
    (copied / "config.yaml").write_text(config)
    found = marl_sb3.match({"one": run, "other": copied}, checkpoints="latest", episodes=1)
    words = "copied was trained with other values of env.max_timesteps, episode_horizon than those of"
    assert found.notes[0].endswith(f"{words} {run}, which are used")


def test_ratings_of_checkpoints_are_a_curve_on_the_page(tmp_path: Path) -> None:
    found = played()
    players = [
        replace(each, source="run", checkpoint=f"ckpt-{number:06d}") for number, each in enumerate(found.players)
    ]
    page = replace(found, players=players, env="<b>").write(tmp_path / "x.html").read_text()
    assert "<h2>Did it get better?</h2>" in page
    assert "Match in &lt;b&gt;" in page
    assert replace(found, env="<b>")._repr_html_().count("&lt;b&gt;") == 1  # what notebooks show
    assert "<h2>Points of the row against the column, %</h2>" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "no player is given, and a match needs two; accepted: runs, --opponent random or MODULE:CLASS"),
        ("RUN", "run alone: a match needs two players; accepted: more runs, --opponent random"),
        ("RUN RUN", "a player is given twice; accepted: different ones"),
        ("RUN --opponent random --opponent random", "an opponent is given twice"),
        ("RUN --checkpoints 7,2", r"has no checkpoint '7'; accepted: best, latest, or one of 2, 4"),
        ("RUN MISSING", "missing is not a run folder: it does not exist"),
        ("--opponent random", r"no player is a run, whose env could be taken; accepted: runs, or --env ENV"),
        ("RUN --opponent random --agents agent1,x", "--agents: 'x' is no agent, or in two sides; accepted: some of"),
        ("RUN --opponent random --agents agent1,agent2", "--agents: there is one side alone"),
        ("RUN --opponent nobody", r"opponent 'nobody'; accepted: random, .* or MODULE:CLASS"),
        (
            "RUN --opponent minimax2",
            "opponent minimax2, agent 'agent[12]', .*, step 1: a board of .*; accepted: those of tic",
        ),
        ("RUN --opponent random --out x.txt", "--out is x.txt; accepted: a file that ends with .html or .json"),
        ("RUN --opponent random --out FOLDER", "--out is .*/folder.json, a folder; accepted: a file"),
        ("RUN --opponent random --out IN_A_FILE", "--out is .*/x.json, and .*config.yaml is no folder; accepted"),
        ("RUN --opponent random --stochastic --deterministic", "are given; accepted: one of them"),
        ("RUN --opponent random --episodes 0", "--episodes is 0; accepted"),
        ("--env CartPole-v1 --opponent random --opponent test_match:Fails", "the env has one agent, 'agent': there is"),
        ("RUN RUN/DAMAGED", "damaged: .* has 10 bytes; the manifest says"),
        ("RUN OTHER", r"other was trained in 'classic/rps-v2', .*run in 'arena'; accepted: runs of one env, or --env"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    run: Path, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, other = run.parent / "damaged", run.parent / "other"
    if "DAMAGED" in arguments:
        shutil.copytree(run / "checkpoints" / "ckpt-000002", damaged)
        next(damaged.glob("*.safetensors")).write_bytes(b"0123456789")
    if "OTHER" in arguments:
        other.mkdir()
        (other / "config.yaml").write_text("classic/rps-v2: {seed: 1}\n")
    (run.parent / "folder.json").mkdir(exist_ok=True)
    places = {"RUN/DAMAGED": damaged, "RUN": run, "MISSING": run.parent / "missing", "OTHER": other}
    places |= {"FOLDER": run.parent / "folder.json", "IN_A_FILE": run / "config.yaml" / "x.json"}
    line = [str(places.get(each, each)) for each in arguments.split()]
    assert main(line) == 2
    assert re.search(message, capsys.readouterr().err)


def test_an_opponent_that_fails_is_named_with_its_place() -> None:
    words = r"opponent test_match:Fails, agent 'right', env 0, episode 1, step 1: it raised KeyError: 'wheel'"
    with pytest.raises(HookError, match=words):
        played({"zero": Always(0), "fails": Fails()})


def test_a_checkpoint_that_does_not_fit_the_run_is_named(run: Path, in_tmp: Path) -> None:
    """As a member of its league that is from another training."""
    copied = Path(shutil.copytree(run, in_tmp / "copied"))
    config = (copied / "config.yaml").read_text()
    layers = re.search(r"net_arch:\n(?: +- \d+\n)+|net_arch: \[[^]]*\]\n", config)
    assert layers is not None
    (copied / "config.yaml").write_text(config.replace(layers[0], "net_arch: [9]\n"))
    where = re.escape(str(copied / "checkpoints" / "ckpt-"))
    with pytest.raises(CheckpointError, match=rf"^{where}\d+: policy-\d+: .* accepted: float32"):
        marl_sb3.match([copied], checkpoints="all", episodes=1)


def test_a_damaged_list_of_members_is_refused(run: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(run, tmp_path / "copied")
    members = copied / "league" / "members.json"
    members.write_text('[{"policy": "../../x", "iteration": 2}]')
    with pytest.raises(CheckpointError, match="is not there"):
        marl_sb3.match([copied], checkpoints="all", episodes=1)
    members.write_bytes(b"\xb1")
    with pytest.raises(ConfigError, match=r"members.json is no list of members"):
        marl_sb3.match([copied], checkpoints="all", episodes=1)
    members.rename(members.with_name("other.json")).write_text("[]")
    members.symlink_to("other.json")
    with pytest.raises(ConfigError, match=r"members.json: it is a link"):
        marl_sb3.match([copied], checkpoints="all", episodes=1)
    members.unlink()
    members.write_text('[{"policy": 1}]')
    with pytest.raises(ConfigError, match=r"members.json is no list of members: Expected `str \| null`, got `int`"):
        marl_sb3.match([copied], checkpoints="all", episodes=1)
