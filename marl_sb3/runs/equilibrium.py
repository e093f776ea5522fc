"""How far policies are from an equilibrium in a game of OpenSpiel: `python -m marl_sb3.evaluate --nash-conv`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marl_sb3.core.acting.asked_agent import AgentInputs, RequestedOutputs
from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.envs.registry import env_factory
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.sb3 import inference
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
from marl_sb3.envs.open_spiel import OPEN_SPIEL, OpenSpielEnv
from marl_sb3.errors import ConfigError, shown
from marl_sb3.evaluation.playing import preserve_training_state
from marl_sb3.extensions.store.load import load_policies
from marl_sb3.runs.folder import LEAGUE, members_of
from marl_sb3.runs.run import Run, SavedRun
from marl_sb3.types import AgentID, Array

_ILLEGAL = 1e-6  # probability of illegal actions that is taken for rounding
_MOST_HISTORIES = 10_000_000  # of a game: more take hours, and more memory than there is


def nash_conv(
    policies: str | Path | Run | MultiAgentAlgorithm | PolicyBundle,
    env: str | None = None,
    checkpoint: str | None = None,
    deterministic: bool = False,
    **env_kwargs: Any,
) -> Result:
    """Compute exactly how much more players could win by best responses: the NashConv of policies.

    The probabilities of the policies in every information state of the game become a table. OpenSpiel then computes,
    for each player, the best response to the others. In a game of two players whose returns sum to 0, the NashConv is 0
    if and only if the policies are an equilibrium.

    Args:
        policies: a run, its folder, one of its checkpoints or a member of its league; or policies by themselves.
        env: their game, such as `open_spiel/leduc_poker`; None: that of the run.
        checkpoint: of a run folder, see `load_policies`.
        deterministic: the most likely actions instead of the probabilities with which they are sampled. In games with
            hidden information, such as poker, equilibria need the latter.
        env_kwargs: parameters of the game; none: those of the run, if `env` is None or that of the run.

    Returns:
        `nash_conv`, the sum of `gains`; `exploitability`, their mean; `gains`, what each agent would win more by a best
        response to the others, and `returns`, its mean return, by agent; and `information_states`. Of a run
        whose league has a pool, `pool`: the same of players that take one of the snapshots of their policies for each
        game, each with the same probability; with `snapshots`, how many there are, by agent.

    Raises:
        ConfigError: the game is none of OpenSpiel's with information state tensors, or has more than ten million
            histories, or OpenSpiel is not installed; or a policy has a memory or no probabilities, takes illegal
            actions, or is for other agents or spaces.
    """
    run, bundle, env, env_kwargs = _of_run(policies, env, checkpoint, env_kwargs)
    game_env = _game_env(env, env_kwargs)
    from open_spiel.python.policy import TabularPolicy

    table = TabularPolicy(game_env.game)

    def tabulated(asked: PolicyBundle) -> Array:
        with preserve_training_state(asked, seed=0):
            return _probabilities(asked, game_env, table.states, deterministic)

    table.action_probability_array = tabulated(bundle)
    found = _measured(table, game_env.possible_agents)
    snapshots = _snapshots(run, bundle) if checkpoint is None else {}
    if snapshots:
        members = [np.stack([tabulated(one) for one in snapshots[agent]]) for agent in game_env.possible_agents]
        table.action_probability_array = drawn_once(members, table)
        counts = {agent: len(own) for agent, own in snapshots.items()}
        found["pool"] = {**_measured(table, game_env.possible_agents), "snapshots": counts}
    return found


def _measured(table: Any, agents: Sequence[AgentID]) -> Result:
    from open_spiel.python.algorithms import expected_game_score, exploitability

    found = exploitability.nash_conv(table.game, table, return_only_nash_conv=False)
    returns = expected_game_score.policy_value(table.game.new_initial_state(), [table] * len(agents))
    return {
        "nash_conv": float(found.nash_conv),
        "exploitability": float(found.nash_conv) / len(agents),
        "gains": dict(zip(agents, map(float, found.player_improvements), strict=True)),
        "returns": dict(zip(agents, map(float, returns), strict=True)),
        "information_states": len(table.states),
    }


def _of_run(
    policies: Any, env: str | None, checkpoint: str | None, env_kwargs: dict[str, Any]
) -> tuple[Any, PolicyBundle, str | None, dict[str, Any]]:
    """Return the run, if a whole one is given; the policies; and the id and the arguments of their env."""
    run = SavedRun.open(policies, makes_env=False) if isinstance(policies, (str, Path)) else policies
    if isinstance(run, (SavedRun, Run)) and env in (None, run.config.env):
        env, env_kwargs = run.config.env, env_kwargs or dict(run.config.env_kwargs)
    if isinstance(run, SavedRun):
        return run if run.at is None else None, run.policies(checkpoint), env, env_kwargs
    return run, run if isinstance(run, PolicyBundle) else run.bundle(), env, env_kwargs


def _snapshots(run: Any, bundle: PolicyBundle) -> dict[AgentID, list[PolicyBundle]]:
    """Return the snapshots of each agent's policy in the pool of a run's league; none if an agent has none."""
    listed = members_of(run.files.path) if isinstance(run, (SavedRun, Run)) else {}
    names = {
        agent: [name for name, member in listed.items() if member.policy == policy_id]
        for agent, policy_id in bundle.policy_of.items()
    }
    if not all(names.values()):
        return {}
    loaded = {name: load_policies(run.files.path / LEAGUE / name) for own in names.values() for name in own}
    return {agent: [loaded[name] for name in own] for agent, own in names.items()}


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
    _require_small(made.game, f"NashConv is not known for env {env!r}")
    return made


def _require_small(game: Any, where: str) -> None:
    """Refuse a game with so many histories that nobody waits for its end."""
    left, number = [game.new_initial_state()], 0
    while left:
        state, number = left.pop(), number + 1
        if number > _MOST_HISTORIES:
            words = f"the game has more than {_MOST_HISTORIES:,} histories"
            raise ConfigError(f"{where}: {words}; accepted: smaller ones, such as open_spiel/leduc_poker", key="env")
        if not state.is_terminal():
            left += [state.child(action) for action in state.legal_actions()]


def _probabilities(bundle: PolicyBundle, env: OpenSpielEnv, states: list[Any], deterministic: bool) -> Array:
    """Return the probability of each action in each state, (states, actions), by the policy of the player who acts."""
    found: Array = np.zeros((len(states), env.game.num_distinct_actions()))
    for player, agent in enumerate(env.possible_agents):
        own = bundle.policies.get(bundle.policy_of.get(agent, ""))
        if not deterministic and own is not None and not inference.has_distribution(own):
            words = f"the policy of {agent} gives no probabilities"
            raise ConfigError(f"{words}; accepted: --deterministic (deterministic=True)", key="policies")
        places = [place for place, state in enumerate(states) if state.current_player() == player]
        seen = [env.observed(states[place], player) for place in places]
        batch = {part: np.stack([one[part] for one in seen]) for part in seen[0]}
        want = RequestedOutputs(actions=True, deterministic=True, distributions=not deterministic)
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


def drawn_once(members: Sequence[Array], table: Any) -> Array:
    """Return the policy of players who draw one of several policies for each game, (states, actions): it is one, too.

    By Kuhn's theorem: in each state, the policies count as much as their own actions make it likely to get there.

    Args:
        members: of each player, (members, states, actions) the probabilities of its policies.
        table: knows the states.
    """
    found: Array = np.zeros_like(table.action_probability_array)

    def follow(state: Any, reaches: Sequence[Array]) -> None:
        if state.is_chance_node():
            for action, _ in state.chance_outcomes():
                follow(state.child(action), reaches)
        elif not state.is_terminal():
            player, place = state.current_player(), table.state_index(state)
            chosen = members[player][:, place]
            likely = reaches[player][:, None] * chosen  # the same on all ways to this state: players forget nothing
            total = likely.sum()
            found[place] = likely.sum(axis=0) / total if total > 0.0 else chosen.mean(axis=0)  # nobody gets there
            for action in state.legal_actions():
                after = [likely[:, action] if one == player else own for one, own in enumerate(reaches)]
                follow(state.child(action), after)

    follow(table.game.new_initial_state(), [np.ones(len(own)) for own in members])
    return found
