"""Advantages and returns against numbers worked by hand.

The value function is known: V = 10 * episode + 2 * step, so that

    episode 1: V = 10, 12, 14, 16, 18 at steps 0 to 4      episode 2: V = 20, 22, 24

Agent a is paid 1 a step, agent b 2. With gamma = lambda = 1/2 (GAE, Schulman et al. 2016, eq. 16):
delta = reward + V(next) / 2 - V; advantage = delta + (next advantage) / 4 within an episode; return = advantage + V.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from small_trainings import with_known_values
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, make_vec_env

IDLE = np.nan  # no advantage, no return


@dataclass
class Case:
    """A script, and what each step of the latest of some rollouts has to be for each agent."""

    script: Mapping[str, tuple[int, str]]
    n_steps: int
    advantages: Mapping[str, list[float]]
    returns: Mapping[str, list[float]]
    joins: Mapping[str, int] = field(default_factory=dict)
    skips: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rewards: Mapping[str, list[float]] = field(default_factory=dict)
    rollouts: int = 1


# Step 1 is the last: 1 - 12 = -11. Step 0: 1 + 12/2 - 10 = -3, and -11/4.
# Episode 2: 1 - 22 = -21; 1 + 22/2 - 20 = -8, and -21/4.
TERMINATED = Case(
    {"a": (2, "terminated")},
    n_steps=4,
    advantages={"a": [-5.75, -11, -13.25, -21]},
    returns={"a": [4.25, 1, 6.75, 1]},
)
# Step 1 ends on the observation of step 2, V = 14 (that of the reset has 20): 1 + 14/2 - 12 = -4. Step 0: -3, and -4/4.
# Episode 2 ends on V = 24: 1 + 24/2 - 22 = -9. Its step 0: -8, and -9/4.
TRUNCATED = Case(
    {"a": (2, "truncated")},
    n_steps=4,
    advantages={"a": [-4, -4, -10.25, -9]},
    returns={"a": [6, 8, 9.75, 13]},
)
# Step 2 goes on to V = 16: 1 + 16/2 - 14 = -5. Step 1: 1 + 14/2 - 12 = -4, and -5/4. Step 0: -3, and -5.25/4.
CUT = Case(
    {"a": (9, "terminated")},
    n_steps=3,
    advantages={"a": [-4.3125, -5.25, -5]},
    returns={"a": [5.6875, 6.75, 9]},
)
# Step 2: 1 - 14 = -13. Step 1: -4, and -13/4. Step 0: -3, and -7.25/4.
TERMINATED_LAST = Case(
    {"a": (3, "terminated")},
    n_steps=3,
    advantages={"a": [-4.8125, -7.25, -13]},
    returns={"a": [5.1875, 4.75, 1]},
)
# a: 1 - 10 = -9, then 1 - 20 = -19 in episode 2.
# b: step 2 ends on V = 16: 2 + 16/2 - 14 = -4; step 1: 2 + 14/2 - 12 = -3, and -4/4; step 0: 2 + 12/2 - 10 = -2, -4/4.
#    Episode 2, cut at V = 24: 2 + 24/2 - 22 = -8; before it 2 + 22/2 - 20 = -7, and -8/4.
A_DIES_FIRST = Case(
    {"a": (1, "terminated"), "b": (3, "truncated")},
    n_steps=5,
    advantages={"a": [-9, IDLE, IDLE, -19, IDLE], "b": [-3, -4, -4, -9, -8]},
    returns={"a": [1, IDLE, IDLE, 1, IDLE], "b": [7, 8, 10, 11, 14]},
)
# a: as in TRUNCATED; then cut at V = 22: 1 + 22/2 - 20 = -8.
# b: step 2: 2 - 14 = -12; step 1: -3, and -12/4; step 0: -2, and -6/4. Then cut: 2 + 22/2 - 20 = -7.
A_IS_CUT_SHORT_FIRST = Case(
    {"a": (2, "truncated"), "b": (3, "terminated")},
    n_steps=4,
    advantages={"a": [-4, -4, IDLE, -8], "b": [-3.5, -6, -12, -7]},
    returns={"a": [6, 8, IDLE, 12], "b": [6.5, 6, 2, 13]},
)
# The second rollout is step 3 of episode 1, where a is long gone, then steps 0 and 1 of episode 2.
# a: 1 - 20 = -19. b: 2 - 16 = -14; then, cut at V = 24, 2 + 24/2 - 22 = -8; before it 2 + 22/2 - 20 = -7, and -8/4.
IDLE_FROM_ROLLOUT_TO_ROLLOUT = Case(
    {"a": (1, "terminated"), "b": (4, "terminated")},
    n_steps=3,
    rollouts=2,
    advantages={"a": [IDLE, -19, IDLE], "b": [-14, -9, -8]},
    returns={"a": [IDLE, 1, IDLE], "b": [2, 11, 14]},
)
# a: truncated on V = 16, the numbers of CUT. b appears at step 1: 2 + 14/2 - 12 = -3, and -12/4; step 2: 2 - 14 = -12.
B_JOINS_LATE = Case(
    {"a": (3, "truncated"), "b": (3, "terminated")},
    n_steps=3,
    joins={"b": 1},
    advantages={"a": [-4.3125, -5.25, -5], "b": [IDLE, -6, -12]},
    returns={"a": [5.6875, 6.75, 9], "b": [IDLE, 6, 2]},
)

# In turns: a acts at steps 0, 2, 4 and is paid 1 for it on b's move; b acts at 1, 3, 5 and is paid 2 at once.
IN_TURNS: dict[str, Any] = {
    "skips": {"a": (1, 3, 5), "b": (0, 2, 4)},
    "rewards": {"a": [0, 1, 0, 1, 0, 1], "b": [0, 2, 0, 2, 0, 2]},
}
# a ends on b's last move. Step 4: 1 - 18 = -17; step 2: 1 + 18/2 - 14 = -4, and -17/4; step 0: 1 + 14/2 - 10 = -2,
# and -8.25/4. b: step 5: 2 - 20 = -18; step 3: 2 + 20/2 - 16 = -4, and -18/4; step 1: 2 + 16/2 - 12 = -2, and -8.5/4.
TURNS_TERMINATED = Case(
    {"a": (6, "terminated"), "b": (6, "terminated")},
    n_steps=6,
    advantages={"a": [-4.0625, IDLE, -8.25, IDLE, -17, IDLE], "b": [IDLE, -4.125, IDLE, -8.5, IDLE, -18]},
    returns={"a": [5.9375, IDLE, 5.75, IDLE, 1, IDLE], "b": [IDLE, 7.875, IDLE, 7.5, IDLE, 2]},
    **IN_TURNS,
)
# a is truncated on b's last move, which leads to V = 22: 1 + 22/2 - 18 = -6; step 2: -4, and -6/4; step 0: -2, -5.5/4.
TURNS_TRUNCATED = Case(
    {"a": (6, "truncated"), "b": (6, "terminated")},
    n_steps=6,
    advantages={**TURNS_TERMINATED.advantages, "a": [-3.375, IDLE, -5.5, IDLE, -6, IDLE]},
    returns={**TURNS_TERMINATED.returns, "a": [6.625, IDLE, 8.5, IDLE, 12, IDLE]},
    **IN_TURNS,
)
# The rollout ends between a's action at step 2 and what it is paid for it: only step 0 is over, 1 + 14/2 - 10 = -2.
# b acts next, at V = 16: 2 + 16/2 - 12 = -2.
TURNS_CUT = Case(
    TURNS_TERMINATED.script,
    n_steps=3,
    advantages={"a": [-2, IDLE, IDLE], "b": [IDLE, -2, IDLE]},
    returns={"a": [8, IDLE, IDLE], "b": [IDLE, 10, IDLE]},
    **IN_TURNS,
)
# The second rollout begins with a's action of step 2, in the place of step 3, in which b acts.
TURNS_CARRIED = Case(
    TURNS_TERMINATED.script,
    n_steps=3,
    rollouts=2,
    advantages={"a": [-8.25, -17, IDLE], "b": [-8.5, IDLE, -18]},
    returns={"a": [5.75, 1, IDLE], "b": [7.5, IDLE, 2]},
    **IN_TURNS,
)
# a acts at step 0 alone and waits for two whole rollouts, in which it is paid 2 and 3, until it is terminated:
# 1 + 2 + 3 - 10 = -4. b acts in every step: step 5: 2 - 20; step 4: 2 + 20/2 - 18 = -6, and -18/4.
WAITS_FOR_ROLLOUTS = Case(
    {"a": (6, "terminated"), "b": (6, "terminated")},
    n_steps=2,
    rollouts=3,
    skips={"a": (1, 2, 3, 4, 5)},
    rewards={"a": [1, 0, 2, 0, 0, 3], "b": [2] * 6},
    advantages={"a": [-4, IDLE], "b": [-10.5, -18]},
    returns={"a": [6, IDLE], "b": [7.5, 2]},
)
# a acts at steps 0 and 3, paid 1 in every step: 1 + 1 + 1 + 16/2 - 10 = 1, and 1 - 16 = -15, of which -15/4.
# b: as in CUT but paid 2, and terminated at V = 16: 2 - 16 = -14; 2 + 16/2 - 14 = -4, -14/4; -3, -7.5/4; -2, -4.875/4.
SKIPS_AND_COMES_BACK = Case(
    {"a": (4, "terminated"), "b": (4, "terminated")},
    n_steps=4,
    skips={"a": (1, 2)},
    advantages={"a": [-2.75, IDLE, IDLE, -15], "b": [-3.21875, -4.875, -7.5, -14]},
    returns={"a": [7.25, IDLE, IDLE, 1], "b": [6.78125, 7.125, 6.5, 2]},
)

CASES = {
    "terminated": TERMINATED,
    "truncated: bootstraps from the final observation": TRUNCATED,
    "both flags: terminated wins": Case(
        {"a": (2, "both")}, 4, advantages=TERMINATED.advantages, returns=TERMINATED.returns
    ),
    "cut by the rollout's end: bootstraps from the next observation": CUT,
    "terminated in the last step of the rollout": TERMINATED_LAST,
    "truncated in the last step of the rollout": Case(
        {"a": (3, "truncated")}, 3, advantages=CUT.advantages, returns=CUT.returns
    ),
    "one dies, the other goes on": A_DIES_FIRST,
    "one is truncated, the other goes on": A_IS_CUT_SHORT_FIRST,
    "idle from one rollout to the next": IDLE_FROM_ROLLOUT_TO_ROLLOUT,
    "one joins late": B_JOINS_LATE,
    "in turns, one ends on the other's move": TURNS_TERMINATED,
    "in turns, one is truncated on the other's move": TURNS_TRUNCATED,
    "in turns, cut between action and pay": TURNS_CUT,
    "in turns, an action of the rollout before": TURNS_CARRIED,
    "waiting through whole rollouts": WAITS_FOR_ROLLOUTS,
    "skips steps and comes back": SKIPS_AND_COMES_BACK,
}


class Keep(MultiAgentCallback):
    """Keeps the latest rollout: per policy (n_steps, rows) advantages and returns, NaN where a row idles."""

    def _on_rollout_end(self) -> None:
        self.kept: dict[str, dict[str, np.ndarray]] = {}
        for policy_id, algorithm in self.algorithm.policies.items():
            buffer: Any = algorithm.rollout_buffer
            self.kept[policy_id] = {
                name: np.where(buffer.acted, getattr(buffer, name), IDLE) for name in ("advantages", "returns")
            }


def rollout(env: Any, n_steps: int, policies: str = "shared", rollouts: int = 1) -> dict[str, dict[str, np.ndarray]]:
    """Play with the known value function, and without learning."""
    weight = [0.0, 10.0, 2.0]  # (agent, episode, step)
    algorithm = with_known_values(env, policies, n_steps, weight, gamma=0.5, gae_lambda=0.5)
    keep = Keep()
    algorithm.learn(n_steps * rollouts * env.num_envs, callback=keep)
    return keep.kept


@pytest.mark.parametrize("policies", ["shared", "per_agent"])
@pytest.mark.parametrize("name", CASES)
def test_advantages_and_returns_equal_those_worked_by_hand(name: str, policies: str) -> None:
    case = CASES[name]
    env = make_vec_env(
        ScriptedEnv, n_envs=2, script=case.script, joins=case.joins, skips=case.skips, rewards=case.rewards
    )
    kept = rollout(env, case.n_steps, policies, case.rollouts)
    for quantity, expected in (("advantages", case.advantages), ("returns", case.returns)):
        for column, agent in enumerate(env.agents):
            all_rows = kept[agent if policies == "per_agent" else "shared"][quantity]
            rows = all_rows if policies == "per_agent" else all_rows[:, column :: len(env.agents)]
            np.testing.assert_array_equal(rows.T, [expected[agent]] * 2, err_msg=f"{quantity} of {agent}")


class OneEndsEachWay(ScriptedEnv):
    """In env 0 agent a is truncated, in env 1 terminated; b the other way round."""

    def __init__(self, env_index: int) -> None:
        ways = ("truncated", "terminated") if env_index == 0 else ("terminated", "truncated")
        super().__init__({"a": (2, ways[0]), "b": (2, ways[1])}, rewards={"b": [1.0, 1.0]}, env_index=env_index)


@pytest.mark.parametrize("policies", ["shared", "per_agent"])
def test_each_row_bootstraps_from_its_own_end(policies: str) -> None:
    kept = rollout(make_vec_env(OneEndsEachWay, n_envs=2), 4, policies)
    truncated, terminated = TRUNCATED.advantages["a"], TERMINATED.advantages["a"]
    expected = {
        "shared": [truncated, terminated, terminated, truncated],
        "a": [truncated, terminated],
        "b": [terminated, truncated],
    }
    for policy_id, arrays in kept.items():
        np.testing.assert_array_equal(arrays["advantages"].T, expected[policy_id])


@pytest.mark.parametrize("policies", ["shared", "per_agent"])
def test_rewards_that_callbacks_see_are_those_of_the_env(policies: str) -> None:
    seen: list[np.ndarray] = []

    def keep(locals_: dict[str, Any], _: Any) -> bool:
        seen.append(locals_["step"].rewards)
        return True

    env = make_vec_env(ScriptedEnv, n_envs=2, script={"a": (2, "truncated"), "b": (2, "truncated")})
    MultiAgentAlgorithm(env, policies, n_steps=4, batch_size=4, seed=0, device="cpu").learn(8, callback=keep)
    np.testing.assert_array_equal(seen, [[[1, 2], [1, 2]]] * 4)
