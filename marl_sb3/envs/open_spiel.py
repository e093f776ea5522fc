"""Games of OpenSpiel whose players take turns: `open_spiel/kuhn_poker` is an `AECEnv` of `pyspiel`'s game."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from typing_extensions import override

from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.doors import EnvFinder
from marl_sb3.envs.drawn import FixedSpaces
from marl_sb3.envs.finding import versions_of
from marl_sb3.errors import ConfigError, install_words
from marl_sb3.types import AgentID, Array
from marl_sb3.wrappers.observations import OBSERVATION

OPEN_SPIEL = "open_spiel/"  # and the name of a game


def spiel_game(env_id: str, parameters: Mapping[str, Any]) -> Any:
    """Load a game.

    Args:
        env_id: `open_spiel/` and its name.
        parameters: of the game, as OpenSpiel names them.

    Raises:
        ConfigError: OpenSpiel is not installed; there is no such game or parameter; or its players move at the same
            time, its chance follows no seed, or it shows them no numbers.
    """
    import pyspiel

    name, where = env_id.removeprefix(OPEN_SPIEL), f"env {env_id!r}"
    types = {kind.short_name: kind for kind in pyspiel.registered_games()}
    if name not in types:
        close = [each for each in types if name in each][:3] or difflib.get_close_matches(name, types, n=3)
        other = f"; did you mean {', '.join(OPEN_SPIEL + each for each in close)}?" if close else ""
        raise ConfigError(f"{where}: OpenSpiel has no such game{other}", key="env")
    kind, accepted = types[name], types[name].parameter_specification
    if unknown := sorted(set(parameters) - set(accepted)):
        words = f"accepted: {', '.join(accepted) or 'none, the game has no parameters'}"
        raise ConfigError(f"{where}: the game does not take {', '.join(unknown)}; {words}", key="env")
    try:
        game = pyspiel.load_game(name, dict(parameters))
    except (pyspiel.SpielError, LookupError) as error:  # the latter of C++
        raise ConfigError(f"{where}: OpenSpiel refuses {dict(parameters)}: {error}", key="env") from error
    kind = game.get_type()  # of these parameters
    refused = {
        "its players move at the same time": kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL,
        "its chance follows no seed": kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC,
        "it has no tensor": not _has_tensor(game),
    }
    for why in (words for words, is_so in refused.items() if is_so):
        accepted_games = "games with turns, listed chance and a tensor, such as open_spiel/leduc_poker"
        raise ConfigError(f"{where}: {why}; accepted: {accepted_games}", key="env")
    return game


def _has_tensor(game: Any) -> bool:
    import pyspiel

    kind = game.get_type()
    if kind.provides_information_state_tensor or not kind.provides_observation_tensor:
        return bool(kind.provides_information_state_tensor)
    try:
        game.observation_tensor_shape()
    except pyspiel.SpielError:  # the game has it in its list, but not in its code
        return False
    return True


class OpenSpielEnv(FixedSpaces, AECEnv):  # type: ignore[misc]
    """A game; its players are `player_0`, `player_1`, ...

    Agents observe their information state tensor, or the observation tensor of a game that has no other, and which
    actions are legal. Outcomes of chance are drawn by the env's seed. Rewards are the changes of the game's returns.

    Args:
        game: from `spiel_game`.
        render_mode: `ansi`: `render` returns the text of the state; None: it returns nothing.
    """

    def __init__(self, game: Any, render_mode: str | None = None) -> None:
        super().__init__()
        self.game, self.render_mode = game, render_mode
        kind = game.get_type()
        self.metadata = {"name": f"open_spiel_{kind.short_name}", "render_modes": ["ansi"], "is_parallelizable": False}
        # A search in copies of the env knows no more than the players.
        self.metadata["shows_everything"] = (
            kind.information == kind.Information.PERFECT_INFORMATION
            and kind.chance_mode == kind.ChanceMode.DETERMINISTIC
        )
        self.possible_agents: list[AgentID] = [f"player_{player}" for player in range(game.num_players())]
        # Whether agents observe all that they know, and not only what they see now.
        self.knows: bool = kind.provides_information_state_tensor
        self._shape = game.information_state_tensor_shape() if self.knows else game.observation_tensor_shape()
        choices = game.num_distinct_actions()
        parts: dict[str, spaces.Space[Any]] = {
            OBSERVATION: spaces.Box(-np.inf, np.inf, tuple(self._shape), np.float32),
            MASK: spaces.Box(0, 1, (choices,), np.int8),
        }
        self.observation_spaces = {agent: spaces.Dict(parts) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(choices) for agent in self.possible_agents}
        self._rng = np.random.default_rng()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin a game."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[AgentID, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.state = self.game.new_initial_state()
        self._go_to_a_player()

    def _go_to_a_player(self) -> None:
        while self.state.is_chance_node():
            outcomes, odds = zip(*self.state.chance_outcomes(), strict=True)
            self.state.apply_action(int(self._rng.choice(outcomes, p=odds)))
        self.agent_selection = self.agents[max(self.state.current_player(), 0)]  # below 0: the game is over

    def observe(self, agent: AgentID) -> dict[str, Array]:
        """What an agent observes now."""
        return self.observed(self.state, self.possible_agents.index(agent))

    def observed(self, state: Any, player: int) -> dict[str, Array]:
        """What a player observes in any state of the game; no action is legal for one that waits."""
        seen = state.information_state_tensor(player) if self.knows else state.observation_tensor(player)
        mask = np.zeros(self.game.num_distinct_actions(), np.int8)
        if state.current_player() == player:
            mask[state.legal_actions()] = 1
        return {OBSERVATION: np.array(seen, np.float32).reshape(self._shape), MASK: mask}

    def step(self, action: Any) -> None:
        """Take the turn of `agent_selection`.

        Raises:
            ValueError: the action is not legal.
        """
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        legal = self.state.legal_actions()
        if int(action) not in legal:
            words = "accepted: those of the action mask"
            raise ValueError(f"{self.agent_selection} takes the illegal action {int(action)}; {words}, {legal}")
        self._cumulative_rewards[self.agent_selection] = 0.0
        before = self.state.returns()
        self.state.apply_action(int(action))
        self._go_to_a_player()
        pays = zip(self.agents, before, self.state.returns(), strict=True)
        self.rewards = {agent: after - so_far for agent, so_far, after in pays}
        self.terminations = dict.fromkeys(self.agents, self.state.is_terminal())
        self._accumulate_rewards()

    def render(self) -> str | None:
        """Return the text of the state, with `render_mode="ansi"`."""
        return str(self.state) if self.render_mode == "ansi" else None


def _made(env_id: str, render_mode: str | None = None, **parameters: Any) -> OpenSpielEnv:
    return OpenSpielEnv(spiel_game(env_id, parameters), render_mode)


class OpenSpielGames(EnvFinder):
    """Finds `open_spiel/NAME`; it lists none of the hundred games."""

    @override
    def find(self, env_id: str) -> EnvFactory | None:
        if not env_id.startswith(OPEN_SPIEL):
            return None
        if not _is_installed():
            words = f"games of OpenSpiel need the package open_spiel; {install_words('openspiel')}"
            raise ConfigError(f"env {env_id!r}: {words}", key="env")
        return partial(_made, env_id)

    @override
    def meant(self, name: str, mine: Sequence[str]) -> str:
        """Return the id of a game whose name is given alone."""
        if not name.replace("_", "").isalnum() or not _is_installed() or versions_of(name):
            return ""
        import pyspiel

        return OPEN_SPIEL + name if name in pyspiel.registered_names() else ""


def _is_installed() -> bool:
    return importlib.util.find_spec("pyspiel") is not None


FINDER = OpenSpielGames()
