"""How far policies are from an equilibrium in a game of OpenSpiel: `python -m marl_sb3.evaluate --nash-conv`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from marl_sb3.core.acting import AgentInputs, PolicyBundle, Want
from marl_sb3.core.config import shown
from marl_sb3.core.envs import MASK, env_factory
from marl_sb3.core.metrics import Result
from marl_sb3.core.training import MultiAgentAlgorithm
from marl_sb3.envs import OPEN_SPIEL, OpenSpielEnv
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation import preserve_training_state
from marl_sb3.runs.folder import run_around
from marl_sb3.runs.rivals import read_at
from marl_sb3.runs.run import Run, SavedRun
from marl_sb3.types import Array

_ILLEGAL = 1e-6  # probability of illegal actions that is taken for rounding


def nash_conv(
    policies: str | Path | Run | MultiAgentAlgorithm | PolicyBundle,
    env: str | None = None,
    checkpoint: str | None = None,
    deterministic: bool = False,
    **env_kwargs: Any,
) -> Result:
    """Measure how much players could win more by best responses, exactly: the NashConv of policies.

    The policies are asked in every information state of the game, and become a table. OpenSpiel then computes, for each
    player, the best response to the others. In a game of two players whose returns sum to 0, the NashConv is 0 if and
    only if the policies are an equilibrium.

    Args:
        policies: a run, its folder, one of its checkpoints or a member of its league; or policies by themselves.
        env: their game, such as `open_spiel/leduc_poker`; None: that of the run.
        checkpoint: of a run folder, see `load_policies`.
        deterministic: the most likely actions instead of the probabilities with which they are sampled. In games with
            hidden information, such as poker, equilibria need the latter.
        env_kwargs: parameters of the game; those of the run, if `env` is None.

    Returns:
        `nash_conv`, the sum of `gains`; `exploitability`, their mean; `gains`, what each agent would win more by a best
        response to the others, and `returns`, what it is paid on average, by agent; and `information_states`.

    Raises:
        ConfigError: the game is none of OpenSpiel's with information state tensors, or OpenSpiel is not installed; or a
            policy has a memory or no probabilities, takes illegal actions, or is for other agents or spaces.
    """
    bundle, env, env_kwargs = _of_run(policies, env, checkpoint, env_kwargs)
    game_env = _game_env(env, env_kwargs)
    from open_spiel.python.algorithms import expected_game_score, exploitability
    from open_spiel.python.policy import TabularPolicy

    game, agents = game_env.game, game_env.possible_agents
    table = TabularPolicy(game)
    with preserve_training_state(bundle, seed=0):
        table.action_probability_array = _probabilities(bundle, game_env, table.states, deterministic)
    found = exploitability.nash_conv(game, table, return_only_nash_conv=False)
    returns = expected_game_score.policy_value(game.new_initial_state(), [table] * len(agents))
    return {
        "nash_conv": float(found.nash_conv),
        "exploitability": float(found.nash_conv) / len(agents),
        "gains": dict(zip(agents, map(float, found.player_improvements), strict=True)),
        "returns": dict(zip(agents, map(float, returns), strict=True)),
        "information_states": len(table.states),
    }


def _of_run(
    policies: Any, env: str | None, checkpoint: str | None, env_kwargs: dict[str, Any]
) -> tuple[PolicyBundle, str | None, dict[str, Any]]:
    """Return the policies, and the id and the arguments of their env."""
    run, around = policies, None
    if isinstance(policies, (str, Path)):
        around = run_around(policies)
        run = SavedRun.open(around or policies, makes_env=False)
    if env is None and isinstance(run, (SavedRun, Run)):
        env, env_kwargs = run.config.env, dict(run.config.env_kwargs)
    if isinstance(run, SavedRun):
        return read_at(run, policies) if around else run.policies(checkpoint), env, env_kwargs
    return run if isinstance(run, PolicyBundle) else run.bundle(), env, env_kwargs


def _game_env(env: str | None, env_kwargs: dict[str, Any]) -> OpenSpielEnv:
    accepted = "accepted: games of OpenSpiel with information state tensors, such as open_spiel/leduc_poker"
    if env is None or not env.startswith(OPEN_SPIEL):
        others = ""
        if env is not None and env.startswith("classic/leduc_holdem"):
            others = "; PettingZoo's has other stakes and other observations, so that its policies do not fit"
        raise ConfigError(f"NashConv is not known for env {shown(env)}; {accepted}{others}", key="env")
    made: OpenSpielEnv = env_factory(env)(**env_kwargs)
    if not made.knows:
        words = "the game has too many information states, or shows players less than they know"
        raise ConfigError(f"NashConv is not known for env {env!r}: {words}; {accepted}", key="env")
    return made


def _probabilities(bundle: PolicyBundle, env: OpenSpielEnv, states: list[Any], deterministic: bool) -> Array:
    """Return the probability of each action in each state, (states, actions), by the policy of the player who acts."""
    found: Array = np.zeros((len(states), env.game.num_distinct_actions()))
    for player, agent in enumerate(env.possible_agents):
        places = [place for place, state in enumerate(states) if state.current_player() == player]
        seen = [env.observed(states[place], player) for place in places]
        batch = {part: np.stack([one[part] for one in seen]) for part in seen[0]}
        want = Want(actions=True, deterministic=True, distributions=not deterministic)
        answer = bundle.ask(AgentInputs({agent: batch}), want)
        if answer.state:
            raise ConfigError(f"the policy of {agent} has a memory; accepted: policies without", key="policies")
        if deterministic:
            found[places, answer.actions[agent]] = 1.0
        else:
            distribution: Any = answer.distributions[agent].distribution
            found[places] = distribution.probs.double().numpy(force=True)
        if (found[places] * (1 - batch[MASK])).max() > _ILLEGAL:
            words = (
                f"the policy of {agent} takes illegal actions; accepted: policies with masks, of --algo maskable_ppo"
            )
            raise ConfigError(words, key="policies")
    legal = found * np.array([state.legal_actions_mask() for state in states])
    probabilities: Array = legal / legal.sum(axis=1, keepdims=True)
    return probabilities
