"""Games of OpenSpiel as envs. Most of these tests need the package open_spiel, which `.[test]` does not install."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from marl_sb3 import make_vec_env
from marl_sb3.core.envs.registry import env_factory
from marl_sb3.errors import ConfigError


def test_without_open_spiel_a_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(ConfigError, match=r"env 'open_spiel/kuhn_poker': games of OpenSpiel need .*'\.\[openspiel\]'"):
        make_vec_env("open_spiel/kuhn_poker")
    with pytest.raises(ConfigError, match=r"unknown env 'kuhn_poker'"):
        make_vec_env("kuhn_poker")


def test_agents_see_and_are_paid_what_the_game_says() -> None:
    pyspiel = pytest.importorskip("pyspiel")
    env, rng = env_factory("open_spiel/leduc_poker")(), np.random.default_rng(0)
    seen = set()
    for seed in range(30):
        env.reset(seed=seed)
        paid = dict.fromkeys(env.agents, 0.0)
        for agent in env.agent_iter():
            observation, reward, is_over, *_ = env.last()
            paid[agent] += reward
            state = pyspiel.load_game("leduc_poker").new_initial_state()
            for action in env.state.history():
                state.apply_action(action)
            player = int(agent[-1])
            assert observation["observation"].tolist() == state.information_state_tensor(player)
            seen.add(tuple(env.state.history()[:2]))
            if is_over:
                env.step(None)
                continue
            assert player == state.current_player()
            assert np.flatnonzero(observation["action_mask"]).tolist() == state.legal_actions()
            env.step(rng.choice(state.legal_actions()))
        assert list(paid.values()) == env.state.returns()
    assert len(seen) > 10  # the cards are drawn


def test_the_seed_decides_the_cards() -> None:
    pytest.importorskip("pyspiel")
    env = env_factory("open_spiel/kuhn_poker")()
    dealt = []
    for seed in (3, 4, 3, 5, 4):
        env.reset(seed=seed)
        dealt.append(env.state.history())
    assert dealt[0] == dealt[2]
    assert dealt[1] == dealt[4]
    assert len(set(map(tuple, dealt))) > 1


def test_what_is_no_game_with_turns_is_refused() -> None:
    pytest.importorskip("pyspiel")
    for env_id, parameters, words in (
        ("open_spiel/kuhn", {}, "OpenSpiel has no such game; did you mean open_spiel/kuhn_poker"),
        ("open_spiel/kuhn_poker", {"cards": 4}, "the game does not take cards; accepted: players"),
        ("open_spiel/kuhn_poker", {"players": 99}, "OpenSpiel refuses {'players': 99}"),
        ("open_spiel/matrix_rps", {}, "its players move at the same time; accepted: games with turns"),
        ("open_spiel/crossword", {}, "it has no tensor; accepted: games with turns"),
        ("open_spiel/nfg_game", {}, "OpenSpiel refuses {}"),
        ("kuhn_poker", {}, "unknown env 'kuhn_poker'; did you mean open_spiel/kuhn_poker?"),
    ):
        with pytest.raises(ConfigError) as raised:
            make_vec_env(env_id, **parameters)
        assert words in str(raised.value)


def test_an_illegal_action_is_named() -> None:
    pytest.importorskip("pyspiel")
    env = env_factory("open_spiel/leduc_poker")()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"player_0 takes the illegal action 0; accepted: .* \[1, 2\]"):
        env.step(0)  # nobody has raised: there is nothing to fold for
