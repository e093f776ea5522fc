"""Turn-based envs: each agent's transition runs from its action to its next turn or its end, and nothing is lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pettingzoo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import AECEnv
from pettingzoo.utils import BaseWrapper, OrderEnforcingWrapper
from turn_env import Move, TurnEnv, TurnPlan, turn_env_plans

from marl_sb3 import make_vec_env
from marl_sb3.core.vec_env.seeding import episode_seed
from marl_sb3.envs.turn_based import TurnBasedEnv
from marl_sb3.errors import EnvError, EnvRaisedError

# (observation, action, reward, terminated, truncated, final observation where it ended)
Transition = tuple[Any, ...]
Transitions = dict[str, list[Transition]]
Chooser = Callable[[Any, Any], int]  # observation, action mask


def plain(observation: Any) -> Any:
    return np.asarray(observation, dtype=np.float64).tolist()


def by_plain_loop(env: AECEnv, episodes: int, choose: Chooser) -> Transitions:
    """Every agent's transitions in a loop as PettingZoo's documentation has it."""
    done: Transitions = defaultdict(list)
    for episode in range(episodes):
        env.reset(seed=episode_seed(7, 0, episode))
        waiting: dict[str, Transition] = {}
        over: set[str] = set()
        begun = False
        for agent in env.agent_iter():
            observation, reward, terminated, truncated, info = env.last()
            mask = info.get("action_mask")
            if isinstance(observation, dict):
                observation, mask = observation["observation"], observation["action_mask"]
            ended = bool(terminated or truncated)
            if agent in waiting:
                final = plain(observation) if ended else None
                done[agent].append((*waiting.pop(agent), reward, bool(terminated), bool(truncated), final))
            elif reward and not (ended and agent in over):  # a second life without an action is not seen
                done[agent].append(("early", None, reward))
            if ended and begun:  # who has left before anybody acts is not seen at all
                over.add(agent)
            begun = begun or not ended
            action = None if ended else choose(observation, mask)
            if not ended:
                waiting[agent] = (plain(observation), action)
            env.step(action)
        assert waiting == {}
    return done


def by_vec_env(factory: Any, episodes: int, choose: Chooser) -> Transitions:
    """The same out of what a vec env of one env gives."""
    vec = make_vec_env(factory, seed=7, vectorizer="sync")
    places = {
        agent: (number, place) for number, group in enumerate(vec.groups) for place, agent in enumerate(group.agents)
    }
    done: Transitions = defaultdict(list)
    waiting: dict[str, list[Any]] = {}
    step = vec.reset()
    while episodes:
        (column,) = np.flatnonzero(step.to_act[0])
        agent = vec.agents[column]
        number, place = places[agent]
        masks = step.action_masks[number]
        seen = step.observations[number][0, place].copy()
        if agent in waiting:
            done[agent].append((*waiting.pop(agent), False, False, None))
        action = choose(seen, None if masks is None else masks[0, place])
        waiting[agent] = [plain(seen), action, 0.0]
        actions = [np.zeros((1, len(group.agents)), np.int64) for group in vec.groups]
        actions[number][0, place] = action
        step = vec.step(actions)
        for other, name in enumerate(vec.agents):
            ends = bool(step.terminated[0, other]), bool(step.truncated[0, other])
            if name not in waiting:
                if paid := float(step.rewards[0, other]):
                    done[name].append(("early", None, paid))
                continue
            waiting[name][2] += float(step.rewards[0, other])
            if any(ends):
                final = step.final_observations[0, other]
                done[name].append((*waiting.pop(name), *ends, plain(final)))
        if step.episode_done[0]:
            assert waiting == {}
            episodes -= 1
    return done


def chooser(seed: int) -> Chooser:
    rng = np.random.default_rng(seed)

    def choose(observation: Any, mask: Any) -> int:
        return int(rng.integers(3) if mask is None else rng.choice(np.flatnonzero(mask)))

    return choose


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(plans=turn_env_plans(), seed=st.integers(0, 99))
def test_any_turns_give_the_transitions_of_a_plain_loop(plans: Any, seed: int) -> None:
    loop = by_plain_loop(TurnEnv(plans), 4, chooser(seed))
    assert by_vec_env(lambda: TurnEnv(plans), 4, chooser(seed)) == loop


@pytest.mark.parametrize("env_id", ["classic/rps-v2", "classic/tictactoe-v3", "classic/connect_four-v3"])
def test_pettingzoos_envs_give_the_transitions_of_a_plain_loop(env_id: str) -> None:
    loop = by_plain_loop(pettingzoo.make("aec", env_id), 3, chooser(1))
    assert by_vec_env(lambda: TurnBasedEnv(pettingzoo.make("aec", env_id)), 3, chooser(1)) == loop
    assert {reward for transitions in loop.values() for _, _, reward, *_ in transitions} >= {-1, 0, 1}


# --- By hand ---------------------------------------------------------------------------------------------------------


def of(*moves: Move, **others: Any) -> dict[str, list[Any]]:
    """(reward, terminated, truncated) of each agent's transitions in one episode; (reward,) before a first action."""
    plans = [[TurnPlan(moves, **others)]]
    transitions = by_vec_env(lambda: TurnEnv(plans), 1, lambda observation, mask: 1)
    return {agent: [transition[2:5] for transition in of_agent] for agent, of_agent in transitions.items()}


class Doubled(BaseWrapper):
    """A wrapper of the user's: it pays twice."""

    def last(self, observe: bool = True) -> tuple[Any, ...]:
        observation, reward, *others = super().last(observe)
        return (observation, 2 * reward, *others)


class DoubledInside(BaseWrapper):
    """Another one, which PettingZoo's own may stand around."""

    @property
    def _cumulative_rewards(self) -> dict[str, float]:
        return {agent: 2 * reward for agent, reward in self.env._cumulative_rewards.items()}


@pytest.mark.parametrize("wrap", [Doubled, lambda env: OrderEnforcingWrapper(DoubledInside(env))])
def test_wrappers_of_the_users_are_heard(wrap: Any) -> None:
    loop = by_plain_loop(wrap(pettingzoo.make("aec", "classic/tictactoe-v3")), 3, chooser(1))
    assert any(transition[2] == 2 for transition in loop["player_1"] + loop["player_2"])
    assert by_vec_env(lambda: wrap(pettingzoo.make("aec", "classic/tictactoe-v3")), 3, chooser(1)) == loop


def test_an_agent_is_paid_for_its_action_whoever_moves_meanwhile() -> None:
    moves = Move("dora", {"dora": 1}), Move("adam", {"dora": 2, "adam": 5}), Move("dora", {"dora": 4, "adam": 8})
    assert of(*moves) == {"dora": [(3, False, False), (4, False, True)], "adam": [(13, False, True)]}


def test_an_agent_that_dies_on_anothers_move_is_told_so_with_what_it_was_paid_last() -> None:
    moves = Move("dora", {"dora": 1}), Move("adam", {"dora": -7}, {"dora": "terminated"}), Move("adam")
    assert of(*moves) == {"dora": [(-6, True, False)], "adam": [(0, False, False), (0, False, True)]}


def test_all_may_end_at_once() -> None:
    moves = Move("dora"), Move("adam", {"dora": -1, "adam": 1}, {"dora": "terminated", "adam": "truncated"})
    assert of(*moves) == {"dora": [(-1, True, False)], "adam": [(1, False, True)]}


def test_an_agent_that_is_removed_without_a_dead_turn_keeps_its_pay_and_its_end() -> None:
    moves = Move("dora", {"dora": 1}), Move("adam", {"dora": 2}, {"dora": "removed"}), Move("adam", {"adam": 3})
    assert of(*moves) == {"dora": [(3, True, False)], "adam": [(0, False, False), (3, False, True)]}


def test_an_agent_that_is_dead_at_the_start_never_acts() -> None:
    assert of(Move("dora"), Move("adam"), dead=["dora"]) == {"adam": [(0, False, True)]}


def test_an_agent_that_ended_and_lives_again_begins_a_new_transition() -> None:
    ends = Move("adam", {"dora": 1}, {"dora": "terminated"})
    moves = Move("dora"), ends, Move("adam", {"dora": 9}, joins=["dora"]), Move("dora", {"dora": 5}), Move("adam")
    adam = [(0, False, False), (0, False, False), (0, False, True)]
    assert of(*moves) == {"dora": [(1, True, False), (9,), (5, False, True)], "adam": adam}


def test_a_truncated_agent_keeps_what_it_saw_last() -> None:
    plans = [[TurnPlan([Move("dora"), Move("adam", ends={"dora": "truncated"}), Move("adam")])]]
    (transition,) = by_vec_env(lambda: TurnEnv(plans), 1, lambda observation, mask: 2)["dora"]
    assert transition[-1][::2] == [1, 2]  # its number, and the latest action: adam's


def test_an_env_in_which_all_are_dead_at_the_start_is_refused() -> None:
    with pytest.raises(EnvError, match=r"env 0, episode 0, step 0: no agent is live after reset\(\)"):
        of(Move("dora"), dead=["dora", "adam"])


class Undead(TurnEnv):
    """`step(None)` does nothing."""

    def step(self, action: Any) -> None:
        if action is not None:
            super().step(action)


class Falling(TurnEnv):
    def observe(self, agent: str) -> Any:
        return [][self.index - 1] if self.index == 1 else super().observe(agent)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Undead, "RuntimeError: agent 'dora' has ended, but step(None) gives it another turn"),
        (Falling, "IndexError: list index out of range"),
    ],
)
def test_a_fault_in_a_turn_names_the_agent_that_moved(env: type[TurnEnv], words: str) -> None:
    plans = [[TurnPlan([Move("dora", ends={"dora": "terminated"}), Move("adam")])]]
    vec = make_vec_env(env, seed=3, plans=plans)
    vec.reset()
    with pytest.raises(EnvRaisedError) as caught:
        vec.step((np.zeros((1, 4), int),))
    where = f"env 0, episode 0, step 1, seed {episode_seed(3, 0, 0)}, agent 'dora'"
    assert str(caught.value).startswith(f"{where}: step() raised {words} (")


def test_illegal_moves_are_mentioned_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl_sb3.envs.turn_based._said", set())
    vec = make_vec_env("classic/tictactoe-v3", n_envs=2, seed=0)
    vec.reset()
    ends = [vec.step((np.zeros((2, 2), int),)).terminated for _ in range(4)]
    assert [end.all() for end in ends] == [False, True, False, True]
    assert len(caplog.messages) == 1
    assert "Illegal move made" in caplog.messages[0]
