"""Policies that look ahead in copies of the env."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pettingzoo
import pytest
import torch as th
from pettingzoo.utils import BaseParallelWrapper
from playing import make

import marl_sb3
from marl_sb3 import ConfigError, PolicySpec, evaluate_policies, make_vec_env
from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.vec_env.observations import same
from marl_sb3.envs.turn_based import TurnBasedEnv
from marl_sb3.evaluation.search import Searcher, copied, searching

SPEC: dict[str, Any] = {"n_steps": 8, "batch_size": 4, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}}


def untrained(env: str, **options: Any) -> PolicyBundle:
    """Policies that have learned nothing: what they do well, they do by the search."""
    bundle: PolicyBundle = make(env, {"shared": PolicySpec(marl_sb3.MaskablePPO, **SPEC, **options)}).bundle()
    return bundle


@pytest.mark.parametrize(
    ("env", "episodes"), [("classic/tictactoe-v3", 5), ("classic/connect_four-v3", 2), ("open_spiel/tic_tac_toe", 5)]
)
def test_a_search_makes_a_player_of_a_policy_that_knows_nothing(env: str, episodes: int) -> None:
    if env.startswith("open_spiel"):
        pytest.importorskip("pyspiel")
    bundle, games = untrained(env), make_vec_env(env, n_envs=2)

    def won(policies: PolicyBundle) -> float:
        seats = evaluate_policies(policies, games, episodes, seed=0, against="random")
        return float(np.mean([metrics["won"] for metrics in seats.values()]))

    assert won(searching(bundle, 40)) > max(0.7, won(bundle))
    games.close()


def test_a_search_wins_and_blocks() -> None:
    bundle, game = untrained("classic/tictactoe-v3"), pettingzoo.make("aec", "classic/tictactoe-v3")
    # Cells by columns. The first player has 0 and 1, and would win in 2.
    for moves, best in (([0, 3, 1, 4], 2), ([0, 3, 1], 2)):
        game.reset()
        for move in moves:
            game.step(move)
        made = make_vec_env(lambda game=game: game.unwrapped, n_envs=1)
        searcher = Searcher(searching(bundle, 200), made, True)
        assert searcher.actions([0]) == [best]


def test_a_copy_goes_its_own_way() -> None:
    for env_id in ("classic/tictactoe-v3", "classic/connect_four-v3"):
        game = pettingzoo.make("aec", env_id, render_mode="rgb_array").unwrapped
        game.reset()
        game.step(int(np.flatnonzero(game.observe(game.agent_selection)["action_mask"])[0]))
        game.render()
        seen = {agent: game.observe(agent) for agent in game.agents}
        made = copied(game)
        while made.agents and not any(made.terminations.values()):
            made.step(int(np.flatnonzero(made.observe(made.agent_selection)["action_mask"])[0]))
        assert same([seen[agent] for agent in game.agents], [game.observe(agent) for agent in game.agents])
        assert not any(game.terminations.values())


def test_sampled_actions_follow_the_visits_and_the_seed() -> None:
    bundle, env = searching(untrained("classic/tictactoe-v3"), 12), make_vec_env("classic/tictactoe-v3", n_envs=1)
    env.reset()
    likeliest, sampled = (Searcher(bundle, env, deterministic) for deterministic in (True, False))
    assert len({likeliest.actions([0])[0] for _ in range(5)}) == 1

    def draws() -> list[int]:
        th.manual_seed(0)
        return [sampled.actions([0])[0] for _ in range(20)]

    first = draws()
    assert len(set(first)) > 1
    assert draws() == first
    env.close()


class Shared(list[int]):
    """A board that copies share: it is its own copy."""

    def __deepcopy__(self, memo: Any) -> Shared:
        return self


def test_an_env_that_a_search_would_change_is_refused() -> None:
    game = pettingzoo.make("aec", "classic/connect_four-v3").unwrapped
    env = make_vec_env(lambda: game, n_envs=1)
    env.reset()
    game.board = Shared(game.board)
    with pytest.raises(ConfigError, match="search: this env cannot be copied: what its copies show"):
        Searcher(searching(untrained("classic/connect_four-v3"), 3), env, True).actions([0])


class Mirrored(BaseParallelWrapper):  # type: ignore[misc]
    """Shows the board the other way round."""

    def _turned(self, seen: Any) -> Any:
        return {agent: {**own, "observation": own["observation"][:, ::-1]} for agent, own in seen.items()}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observations, infos = self.env.reset(seed, options)
        return self._turned(observations), infos

    def step(self, actions: Any) -> Any:
        observations, *others = self.env.step(actions)
        return self._turned(observations), *others


def test_an_env_whose_wrappers_show_something_else_is_refused() -> None:
    env = make_vec_env(lambda: Mirrored(TurnBasedEnv(pettingzoo.make("aec", "classic/connect_four-v3"))), n_envs=1)
    with pytest.raises(ConfigError, match="search: wrappers of this env show its agents something else"):
        evaluate_policies(searching(untrained("classic/connect_four-v3"), 3), env, 1, against="random")


def test_what_cannot_be_searched_is_refused() -> None:
    env = make_vec_env("classic/rps-v2", n_envs=1)
    values = marl_sb3.MultiAgentAlgorithm(env, {"shared": PolicySpec(marl_sb3.DQN)}).bundle()
    with pytest.raises(ConfigError, match=r"search: policy 'shared' is of DQN with actions in Discrete\(3\); accepted"):
        searching(values, 5)
    frames = untrained("classic/tictactoe-v3", frame_stack=2)
    with pytest.raises(ConfigError, match=r"search: policy 'shared' has frame_stack; accepted: policies with values"):
        searching(frames, 5)
    if find_spec("pyspiel"):
        poker = make_vec_env("open_spiel/kuhn_poker", n_envs=1)
        with pytest.raises(ConfigError, match=r"search: the game has hidden information or chance"):
            evaluate_policies(searching(untrained("open_spiel/kuhn_poker"), 5), poker, 1)
    with pytest.raises(ConfigError, match=r"search: this env is another kind; accepted: games of two agents that take"):
        evaluate_policies(searching(make("classic/rps-v2").bundle(), 5), env, 1)
    env.close()
