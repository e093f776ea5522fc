"""Two sides in the same envs: the policies of a bundle, and an opponent that plays the other agents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from marl_sb3.core.acting.actor import Acted, Actor
from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.mapping import Deterministic, by_policy, rows_of_policy, zero_actions
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.evaluation.opponents import Against, OpponentRows, bundle_of, opponents_of
from marl_sb3.evaluation.search import Searcher, SearchingBundle
from marl_sb3.types import AgentID, Array, PolicyID


class PolicySide:
    """The policies of a bundle, acting for some agents in all envs, whose episodes have just begun.

    To the others' rows it shows no step to act on. They stay in the policies' rows: a policy that observes which agent
    it acts for counts them.
    """

    def __init__(
        self,
        bundle: PolicyBundle,
        env: MultiAgentVecEnv,
        agents: Collection[AgentID],
        deterministic: Deterministic,
        with_log_probs: bool = False,
    ) -> None:
        self._env = env
        self.play(agents)
        self.actors = [
            bundle.make_actor(rows_of_policy(env, policy_id, bundle.policy_of), likeliest, with_log_probs)
            for policy_id, likeliest in by_policy(deterministic, bundle.policies).items()
            if any(bundle.policy_of.get(agent) == policy_id for agent in agents)
        ]
        self._searcher = Searcher(bundle, env, deterministic) if isinstance(bundle, SearchingBundle) else None

    def play(self, agents: Collection[AgentID]) -> None:
        """From the next step on, act for these of the agents."""
        self._own = np.isin(self._env.agents, list(agents))

    def act(self, step: VecStep, actions: Sequence[Array]) -> dict[PolicyID, Acted]:
        """Write the actions that follow a step into the arrays of all groups, (E, A_group, ...)."""
        shown, acted, chosen = self._shown(step), dict[PolicyID, Acted](), zero_actions(self._env)
        for actor in self.actors:
            acted[actor.rows.policy_id] = actor.act(shown)
            actor.rows.put_actions(acted[actor.rows.policy_id].actions, chosen)
        for group, of_group, to in zip(self._env.groups, chosen, actions, strict=True):
            columns = self._own[list(group.columns)]
            to[:, columns] = of_group[:, columns]
        if self._searcher is not None:
            self._searcher.put(shown, actions)
        return acted

    def observe(self, step: VecStep) -> None:
        """Note the rewards and ends of a step."""
        shown = self._shown(step)
        for actor in self.actors:
            actor.observe(shown)

    def _shown(self, step: VecStep) -> VecStep:
        return step if self._own.all() else replace(step, to_act=step.to_act & self._own)


class Pairing:
    """The policies of a bundle, and an opponent that plays the agents that they do not play.

    Args:
        against: the opponent, see `evaluate_policies`; None: nobody.
        ours: the agents that the policies may have to play.
        others: the agents that the opponent may have to play.

    Raises:
        ConfigError: the opponent is none, or cannot be made.
    """

    def __init__(
        self,
        env: MultiAgentVecEnv,
        policies: PolicyBundle,
        against: Against | None,
        ours: Collection[AgentID],
        others: Collection[AgentID],
    ) -> None:
        self._env, self._policies, self._ours, self._others = env, policies, ours, others
        self.theirs = None if against is None else bundle_of(against)  # the opponent's policies, if it plays by some
        self._code = {} if against is None or self.theirs is not None else opponents_of(against, env, others)

    def begin(self, deterministic: Deterministic, seed: int | None, with_log_probs: bool = False) -> None:
        """Begin to act: all envs have just been reset; the arguments are those of `play`."""
        self._sides = [PolicySide(self._policies, self._env, self._ours, deterministic, with_log_probs)]
        if self.theirs is not None:
            likeliest = deterministic if isinstance(deterministic, bool) else self.theirs.evaluation_deterministic
            self._sides.append(PolicySide(self.theirs, self._env, self._others, likeliest))
        self._code_rows = OpponentRows(self._env, self._code, seed)
        self._acted: list[dict[PolicyID, Acted]] = []

    def play(self, ours: Collection[AgentID]) -> None:
        """From the next step on, let the policies play these agents, and the opponent all others."""
        others = [agent for agent in self._env.agents if agent not in ours]
        for side, agents in zip(self._sides, (ours, others), strict=False):
            side.play(agents)
        self._code_rows.play(others)

    def act(self, step: VecStep, actions: Sequence[Array]) -> dict[PolicyID, Acted]:
        """Write the actions that follow a step, see `PolicySide.act`; returns what the policies have done.

        Raises:
            HookError: the opponent is code of the user's, and failed.
        """
        self._acted = [side.act(step, actions) for side in self._sides]
        self._code_rows.put(step, actions)
        return self._acted[0]

    def marked(self) -> Callable[[], None]:
        """Return a function that takes the next `act` back, so that others may act in place of those who have."""
        actors = [(actor, actor.get_state()) for side in self._sides for actor in side.actors]
        unmark = self._code_rows.marked()

        def take_back() -> None:
            for actor, state in actors:
                actor.read_state(StateReader(state, actor.rows.policy_id))()
            unmark()

        return take_back

    def observe(self, step: VecStep) -> None:
        """Note the rewards and ends of a step."""
        for side in self._sides:
            side.observe(step)

    def decision_of(self, agent: AgentID) -> tuple[Actor, Acted] | None:
        """Return what has chosen the next action of an agent, if that was a policy and the agent acts; else None."""
        for side, acted in zip(self._sides, self._acted, strict=False):
            for actor in side.actors:
                if agent in actor.rows.agents:
                    of_actor = acted[actor.rows.policy_id]
                    if of_actor.acting[actor.rows.agents.index(agent)]:
                        return actor, of_actor
        return None
