"""A game of two players by turns, with action masks: an env of PettingZoo, https://pettingzoo.farama.org/api/aec/."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pettingzoo
from gymnasium import spaces

MOST_TAKEN = 3


class ExampleEnv(pettingzoo.AECEnv[str, dict[str, Any], int]):  # type: ignore[misc]
    """Players take 1 to 3 sticks from a pile in turns; who takes the last one wins.

    Observation: `{"observation": ..., "action_mask": ...}`. The first is the number of sticks, one-hot, (most + 1,)
    float32; the second says which actions are legal, (3,) int8. Actions: 0, 1 or 2 take 1, 2 or 3 sticks. The winner
    gets 1 and the other one -1. Who does what the mask forbids has lost.

    Args:
        most: largest number of sticks in the beginning, at least 4; the seed draws one from 4 on.
    """

    # The logs show custom_metrics: here, how often the player wins who begins.
    metadata: ClassVar[dict[str, Any]] = {
        "name": "ExampleEnv",
        "render_modes": ["rgb_array"],
        "render_fps": 1,
        "custom_metrics": {"player_0_wins": {"key": "won", "agent": "player_0", "reduce": "last"}},
    }

    def __init__(self, most: int = 12, render_mode: str | None = None) -> None:
        self.most, self.render_mode = most, render_mode
        self.possible_agents = ["player_0", "player_1"]
        self._observations = spaces.Dict(
            {
                "observation": spaces.Box(0.0, 1.0, (most + 1,), np.float32),
                "action_mask": spaces.MultiBinary(MOST_TAKEN),
            }
        )
        self._actions = spaces.Discrete(MOST_TAKEN)

    def observation_space(self, agent: str) -> spaces.Dict:
        """What the player sees."""
        return self._observations

    def action_space(self, agent: str) -> spaces.Discrete:
        """What the player may do, if the mask allows it."""
        return self._actions

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin a game; the seed alone says how."""
        self.sticks = int(np.random.default_rng(seed).integers(4, self.most + 1))
        self.agents = list(self.possible_agents)
        self.agent_selection = "player_0"  # whose turn it is
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> dict[str, Any]:
        """Return what a player sees now."""
        shown = np.zeros(self.most + 1, np.float32)
        shown[self.sticks] = 1.0
        mask = (np.arange(1, MOST_TAKEN + 1) <= self.sticks).astype(np.int8)
        return {"observation": shown, "action_mask": mask}

    def step(self, action: int | None) -> None:
        """Let the player whose turn it is act."""
        player = self.agent_selection
        if self.terminations[player]:  # the game is over: PettingZoo takes leave of each player by an empty action
            self._was_dead_step(action)
            return
        assert action is not None
        other = "player_1" if player == "player_0" else "player_0"
        is_legal = action < self.sticks
        self.sticks = max(self.sticks - int(action) - 1, 0)
        self._cumulative_rewards[player] = 0.0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if self.sticks == 0:
            winner, loser = (player, other) if is_legal else (other, player)
            self.rewards = {winner: 1.0, loser: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
            self.infos = {winner: {"won": 1.0}, loser: {"won": 0.0}}
        self.agent_selection = other
        self._accumulate_rewards()

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return a picture of the pile, (64, 16 * most + 8, 3) uint8."""
        if self.render_mode != "rgb_array":
            return None
        pile = np.full((1, 2 * self.most + 1, 3), 255, np.uint8)
        pile[0, 1 : 2 * self.sticks : 2] = (29, 91, 214)
        return pile.repeat(64, axis=0).repeat(8, axis=1)

    def close(self) -> None:
        """Nothing is open; PettingZoo wants this method beside `render`."""
