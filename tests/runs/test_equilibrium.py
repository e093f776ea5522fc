"""NashConv of policies, exactly. Most of these tests need the package open_spiel, which `.[test]` does not install."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from refusals import refusal

import marl_sb3
from marl_sb3 import (
    MaskablePPO,
    MultiAgentAlgorithm,
    PolicySpec,
    combine_policies,
    evaluate,
    load_policies,
    make_vec_env,
    nash_conv,
)
from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation.playing import play
from marl_sb3.runs import equilibrium
from marl_sb3.runs.equilibrium import drawn_once

KUHN, LEDUC = "open_spiel/kuhn_poker", "open_spiel/leduc_poker"
CARDS = "JQK"

# An equilibrium of Kuhn poker, in which the first player never opens with a bet: the probability of a bet, by what has
# happened (pass, bet) and the card. It pays the first player -1/18.
EQUILIBRIUM = {
    "": {"J": 0.0, "Q": 0.0, "K": 0.0},
    "p": {"J": 1 / 3, "Q": 0.0, "K": 1.0},
    "b": {"J": 0.0, "Q": 1 / 3, "K": 1.0},
    "pb": {"J": 0.0, "Q": 1 / 3, "K": 1.0},
}


def untrained(env_id: str, policies: Any = "shared", **hyperparameters: Any) -> MultiAgentAlgorithm:
    """Policies that choose each legal action with the same probability."""
    env = make_vec_env(env_id, n_envs=64, seed=0)
    policy_ids = ["shared"] if policies == "shared" else env.agents
    specs = {policy_id: PolicySpec(MaskablePPO, n_steps=8, **hyperparameters) for policy_id in policy_ids}
    algo = MultiAgentAlgorithm(
        env, specs, (lambda _: "shared") if policies == "shared" else (lambda agent: agent), n_steps=8, seed=0
    )
    for policy in algo.policies.values():
        for parameter in policy.policy.action_net.parameters():
            parameter.data.zero_()
    return algo


def plant(policy: Any, bets: dict[str, dict[str, float]]) -> None:
    """Make a network of 12 hidden units play a table: each unit knows one information state of Kuhn poker."""
    kuhn: Any = pytest.importorskip("pyspiel").load_game("kuhn_poker")
    hidden, logits = policy.mlp_extractor.policy_net[0], policy.action_net
    units = [(history, card) for history in bets for card in CARDS]
    with th.no_grad():
        for unit, (history, card) in enumerate(units):
            state, player = kuhn.new_initial_state(), len(history) % 2
            others = [number for number in range(3) if number != CARDS.index(card)]
            for dealt in [CARDS.index(card), others[0]][:: 1 if player == 0 else -1]:
                state.apply_action(dealt)
            for action in history:
                state.apply_action("pb".index(action))
            seen = th.tensor(state.information_state_tensor(player))
            hidden.weight[unit], hidden.bias[unit] = 2 * seen - 1, 1 - seen.sum()  # 1 for this state, 0 for others
            bet = min(max(bets[history][card], 1e-12), 1 - 1e-12)
            logits.weight[:, unit] = th.tensor([np.log(1 - bet), np.log(bet)])


def planted(policies: Any = "shared") -> MultiAgentAlgorithm:
    pytest.importorskip("pyspiel")
    net = {"net_arch": {"pi": [12], "vf": [4]}, "activation_fn": th.nn.ReLU}
    algo = untrained(KUHN, policies, policy_kwargs=net)
    plant(next(iter(algo.policies.values())).policy, EQUILIBRIUM)
    return algo


def test_other_games_are_refused() -> None:
    nobody = PolicyBundle({}, {}, {}, {})
    with pytest.raises(ConfigError, match=r"NashConv is not known for env 'classic/tictactoe-v3'; accepted: games of"):
        nash_conv(nobody, "classic/tictactoe-v3")
    with pytest.raises(ConfigError, match=r"not known for env 'classic/leduc_holdem-v4'; .* such as open_spiel/leduc_"):
        nash_conv(nobody, "classic/leduc_holdem-v4")
    with pytest.raises(ConfigError, match=r"not known for env None"):
        nash_conv(nobody)


@pytest.mark.parametrize(("env_id", "known", "states"), [(KUHN, 11 / 12, 12), (LEDUC, 4.7472222, 936)])
def test_uniform_policies_have_the_known_nash_conv(env_id: str, known: float, states: int) -> None:
    pytest.importorskip("pyspiel")
    found = nash_conv(untrained(env_id), env_id)
    assert found["nash_conv"] == pytest.approx(known, abs=1e-6)
    assert found["exploitability"] == pytest.approx(known / 2, abs=1e-6)
    assert sum(found["gains"].values()) == pytest.approx(known, abs=1e-6)
    assert found["information_states"] == states


def test_an_equilibrium_has_the_nash_conv_0() -> None:
    found = nash_conv(planted(), KUHN)
    assert found["nash_conv"] == pytest.approx(0.0, abs=1e-6)
    assert found["returns"] == pytest.approx({"player_0": -1 / 18, "player_1": 1 / 18}, abs=1e-6)


def test_each_agent_plays_by_its_own_policy() -> None:
    found = nash_conv(planted("per_agent"), KUHN)  # the other one draws its actions
    assert found["gains"]["player_0"] > 0.1
    assert found["gains"]["player_1"] == pytest.approx(1 / 18 + found["returns"]["player_0"], abs=1e-6)


def test_the_most_likely_actions_are_another_policy() -> None:
    found = nash_conv(planted(), KUHN, deterministic=True)
    # Nobody bluffs, and nobody calls with a queen: against this, the second player gains by a bet with a jack.
    assert found["nash_conv"] > 0.1


def test_the_table_is_what_is_played() -> None:
    pytest.importorskip("pyspiel")
    algo = untrained(LEDUC)
    for parameter in algo.policies["shared"].policy.action_net.parameters():
        th.nn.init.normal_(parameter, generator=th.Generator().manual_seed(0))
    env = make_vec_env(LEDUC, n_envs=64)
    played = play(algo, env, 600, deterministic=False, seed=0).agent_returns("player_0")
    expected = nash_conv(algo, LEDUC)["returns"]["player_0"]
    assert abs(np.mean(played) - expected) < 4 * np.std(played) / np.sqrt(len(played))


def test_who_draws_a_policy_for_each_game_plays_as_one_policy_does() -> None:
    """One of two always bets, the other one draws: 3/4 bet. Who has passed is the second."""
    policy = pytest.importorskip("open_spiel.python.policy")
    table: Any = policy.TabularPolicy(pytest.importorskip("pyspiel").load_game("kuhn_poker"))
    bets, draws = np.zeros((12, 2)), np.full((12, 2), 0.5)
    bets[:, 1] = 1.0
    members = np.stack([bets, draws])
    found = drawn_once([members, members], table)
    first = table.game.new_initial_state()
    for action in (0, 1):  # the cards
        first.apply_action(action)
    np.testing.assert_allclose(found[table.state_index(first)], [0.25, 0.75])
    for action in (0, 1):  # passes, which only the second does; the other player bets
        first.apply_action(action)
    np.testing.assert_allclose(found[table.state_index(first)], [0.5, 0.5])
    never = drawn_once([bets[None], bets[None]], table)
    np.testing.assert_array_equal(never, bets)  # in states that nobody gets to, too


def test_policies_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspiel")
    remembers = untrained(KUHN, frame_stack=2)
    with pytest.raises(ConfigError, match=r"the policy of player_0 has a memory; accepted: policies without"):
        nash_conv(remembers, KUHN)
    env = make_vec_env(LEDUC, n_envs=1)
    unmasked = MultiAgentAlgorithm(env, {"shared": PolicySpec(marl_sb3.PPO, n_steps=8)}, lambda _: "shared", n_steps=8)
    with pytest.raises(
        ConfigError, match=r"the policy of player_0 takes illegal actions; accepted: policies with masks"
    ):
        nash_conv(unmasked, LEDUC)
    with pytest.raises(ConfigError, match=r"open_spiel/connect_four': the game has too many information states"):
        nash_conv(unmasked, "open_spiel/connect_four")
    kuhn, chooses = make_vec_env(KUHN, n_envs=1), {"shared": PolicySpec(marl_sb3.DQN, buffer_size=10)}
    by_values = MultiAgentAlgorithm(kuhn, chooses, lambda _: "shared")
    with pytest.raises(ConfigError, match=r"policy of player_0 gives no probabilities; accepted: --deterministic"):
        nash_conv(by_values, KUHN)
    monkeypatch.setattr(equilibrium, "_MOST_HISTORIES", 100)
    with pytest.raises(ConfigError, match=r"poker': the game has more than 100 histories; accepted: smaller ones"):
        nash_conv(unmasked, LEDUC)


def test_a_league_has_that_of_its_pool(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspiel")
    league = {"snapshot_every": 2, "exploiters": {"rival": {"of": "shared", "reset_every": 1}}}
    settings = {"n_steps": 16, "batch_size": 16, "league": league}
    run = marl_sb3.train(KUHN, algo="maskable_ppo", timesteps=128, n_envs=2, seed=0, run_dir="run", settings=settings)
    capsys.readouterr()
    found = nash_conv("run")["pool"]
    assert found == nash_conv(run)["pool"]
    assert found["snapshots"] == {"player_0": 2, "player_1": 2}  # none of the exploiter
    assert evaluate.main(["run", "--nash-conv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pool"] == found
    assert evaluate.main(["run", "--nash-conv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].startswith(f"NashConv {found['nash_conv']:.4f}")
    assert lines[3].endswith("one of 2 snapshots in the pool, drawn for each game")
    assert "pool" not in nash_conv("run", checkpoint="latest")
    exploiter = load_policies("run/league/rival@1")
    own = combine_policies(dict.fromkeys(("player_0", "player_1"), (exploiter, "rival")))
    assert nash_conv("run/league/rival@1") == nash_conv(own, KUHN) == nash_conv(exploiter, KUHN)
    assert nash_conv(exploiter, KUHN) != nash_conv("run", checkpoint="latest")
    assert "pool" not in nash_conv(run.bundle(), KUHN)


def test_the_command_prints_it(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspiel")
    own = {"n_steps": 16, "league.snapshot_every": 1}
    run = marl_sb3.train(KUHN, algo="maskable_ppo", timesteps=32, n_envs=2, seed=0, run_dir="run", settings=own)
    capsys.readouterr()
    assert evaluate.main(["run", "--nash-conv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == nash_conv(run) == nash_conv("run")
    del found["pool"]
    assert found == nash_conv(run.bundle(), KUHN)
    assert found == nash_conv("run/checkpoints/ckpt-000001") == nash_conv("run/league/shared@1")
    assert evaluate.main(["run/league/shared@1", "--nash-conv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert evaluate.main(["run", "--nash-conv", "--deterministic"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("the most likely actions")
    assert [line.split(":")[0] for line in lines[1:3]] == ["player_0", "player_1"]
    assert nash_conv("run", KUHN) == nash_conv("run")
    for arguments, words in (
        (["run", "--seed", "1"], "--nash-conv plays no episode: --seed does not go with it"),
        (["run/league/shared@1", "--checkpoint", "1"], "is a checkpoint itself, and checkpoint is 1"),
        (["run", "--env", "classic/rps-v2"], "NashConv is not known for env 'classic/rps-v2'"),
    ):
        assert words in refusal(evaluate.main, [*arguments, "--nash-conv"], capsys)
