"""What central critics see: the state of each env, or what all its agents observe and do.

`CentralInputs` is what the env shows. Critics of actions get besides what the policies of a training make of it, side
by side, and what these do: see `Team`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from marl_sb3.core.acting.actor import Acted, Actor
from marl_sb3.core.acting.policy import PolicyInputs
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.observations import map_arrays, taken
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, BoolArray, FloatArray, PolicyID

NextActions = Callable[[Any], th.Tensor]


class CentralInputs:
    """Makes the inputs of a critic for the rows of a policy from steps of the envs.

    They are the env's state if the steps have one; else the observations of all agents, zeros for those that do not act
    next, and who acts next. If a policy plays several agents, a one-hot code says for which of them a value is.

    Args:
        env: the envs.
        rows: of the policy.
    """

    def __init__(self, env: MultiAgentVecEnv, rows: PolicyRows) -> None:
        self._env, self._rows = env, rows
        several = len(rows.agents) > 1
        self._who = np.tile(np.eye(len(rows.agents), dtype=np.float32), (rows.num_envs, 1)) if several else None

    def of_rows(self, step: VecStep) -> FloatArray:
        """Return (rows, inputs) float32: what the critic sees before the actions that follow a step."""
        if step.env_state is not None:
            of_envs = step.env_state.reshape(len(step.env_state), -1).astype(np.float32)
        else:
            acting = step.to_act.astype(np.float32)
            parts = [
                (flat(group.observation_space, seen) * acting[:, list(group.columns), None]).reshape(len(acting), -1)
                for group, seen in zip(self._env.groups, step.observations, strict=True)
            ]
            of_envs = np.concatenate([*parts, acting], axis=1)
        rows: FloatArray = of_envs.repeat(len(self._rows.agents), axis=0)
        return rows if self._who is None else np.concatenate([rows, self._who], axis=1)

    def of_final(self, step: VecStep, rows: BoolArray) -> FloatArray:
        """Return (n, inputs) for rows, (rows,) bool, whose agents were truncated: what the critic sees at their end."""
        of_envs = self.of_rows(step)
        for env_index in np.unique(np.flatnonzero(rows) // len(self._rows.agents)).tolist():
            places = slice(env_index * len(self._rows.agents), (env_index + 1) * len(self._rows.agents))
            own = self._final_state(step, env_index)
            of_envs[places, : len(own)] = own
        return of_envs[rows]

    def _final_state(self, step: VecStep, env_index: int) -> FloatArray:
        if step.env_state is not None:
            state = step.final_env_states.get(env_index, step.env_state[env_index])
            return np.asarray(state, np.float32).reshape(-1)
        cut = step.truncated[env_index] & ~step.terminated[env_index]  # who is terminated is not there any more
        is_over = step.episode_done[env_index]  # then the step shows the first observations of the next episode
        there = np.zeros(len(self._env.agents), np.float32) if is_over else step.to_act[env_index].astype(np.float32)
        parts = []
        for group, seen in zip(self._env.groups, step.observations, strict=True):
            of_group = flat(group.observation_space, taken(seen, env_index))  # (A_group, inputs)
            of_group *= there[list(group.columns), None]
            for place, column in enumerate(group.columns):
                if cut[column] and (final := step.final_observations.get((env_index, column))) is not None:
                    of_group[place], there[column] = flat(group.observation_space, final), 1.0
            parts.append(of_group.reshape(-1))
        return np.concatenate([*parts, there])


def flat(space: spaces.Space[Any], seen: Any) -> FloatArray:
    """Return observations, (..., *shape of the space), as (..., numbers) float32; choices as one-hot codes."""
    if isinstance(space, spaces.Dict):
        return np.concatenate([flat(part, seen[key]) for key, part in space.spaces.items()], axis=-1)
    array: Array = np.asarray(seen)
    if isinstance(space, spaces.Discrete):
        codes: FloatArray = np.eye(int(space.n), dtype=np.float32)[array - int(space.start)]
        return codes
    if isinstance(space, spaces.MultiDiscrete):
        counts, first = space.nvec.reshape(-1), np.asarray(space.start).reshape(-1)
        chosen = array.reshape(*array.shape[: array.ndim - space.nvec.ndim], -1) - first
        parts = [np.eye(int(count), dtype=np.float32)[chosen[..., place]] for place, count in enumerate(counts)]
        return np.concatenate(parts, axis=-1)
    shape = space.shape or ()
    numbers: FloatArray = array.reshape(*array.shape[: array.ndim - len(shape)], -1).astype(np.float32)
    return numbers / np.float32(255) if array.dtype == np.uint8 and len(shape) > 1 else numbers


# --- What all policies see and do ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """One policy of a team, and its places in the arrays of all: its agents follow one another."""

    policy_id: PolicyID
    acting: Any  # an `ActingPart`: its learner, or a copy in a shard
    agents: int
    first_agent: int  # among the agents of all policies, in this order
    seen_width: int  # of what one agent observes, as its learner keeps it
    first_seen: int
    action_width: int  # of the action of one agent; choices are one-hot codes
    first_action: int

    def seen_at(self, seen: th.Tensor) -> Any:
        """Return what its agents observe, (n * agents, *shape), from (n, ...) of all policies."""
        block = seen[:, self.first_seen : self.first_seen + self.agents * self.seen_width]
        flat_rows, space = block.reshape(-1, self.seen_width), stored_space_of(self.acting.actor)
        if not isinstance(space, spaces.Dict):
            return flat_rows.reshape(len(flat_rows), *(space.shape or ()))
        widths = [_width(part) for part in space.spaces.values()]
        parts = zip(space.spaces.items(), th.split(flat_rows, widths, dim=1), strict=True)
        return {key: block.reshape(len(flat_rows), *(part.shape or ())) for (key, part), block in parts}


class Team:
    """Collects what all agents of a training observe and do, as their policies keep it.

    Args:
        env: the envs.
        acting: policy id -> what acts for its rows in them, or elsewhere.

    Attributes:
        members: its policies; arrays hold their blocks in this order.
    """

    def __init__(self, env: MultiAgentVecEnv, acting: Mapping[PolicyID, Any]) -> None:
        self.env, actors = env, [each.actor for each in acting.values()]
        agents = [len(actor.rows.agents) for actor in actors]
        seen = [_width(stored_space_of(actor)) for actor in actors]
        done = [flat(space, np.zeros(space.shape or (), space.dtype)).size for space in map(action_space_of, actors)]
        firsts = [
            [0, *accumulate(number * width for number, width in zip(agents, widths, strict=True))]
            for widths in ([1] * len(agents), seen, done)
        ]
        self.members = [
            Member(*each, agents[k], firsts[0][k], seen[k], firsts[1][k], done[k], firsts[2][k])
            for k, each in enumerate(acting.items())
        ]
        self.agents, self.seen_width, self.action_width = (first[-1] for first in firsts)
        self._latest: tuple[VecStep, FloatArray] | None = None

    def acted(self, acted: Mapping[PolicyID, Acted]) -> FloatArray:
        """Return (E, actions): what all agents do next, as their policies learn it; zeros of those that wait."""
        blocks = []
        for member in self.members:
            own = acted[member.policy_id]
            learned = own.decision.actions if own.decision.learned is None else own.decision.learned
            codes = flat(action_space_of(member.acting.actor), learned)
            blocks.append((codes * own.acting[:, None]).reshape(self.env.num_envs, -1))
        return np.concatenate(blocks, axis=1)

    def seen(self, step: VecStep) -> FloatArray:
        """Return (E, seen + agents): what all agents observe after a step, and which of them act next."""
        if self._latest is None or self._latest[0] is not step:
            self._latest = step, self._joint_observations(step, None)
        return self._latest[1]

    def final(self, step: VecStep) -> FloatArray:
        """Return the same for agents that have ended: with those that were truncated together with them."""
        return self._joint_observations(step, step.final_observations.among(step.truncated & ~step.terminated))

    def _joint_observations(self, step: VecStep, ended: BoolArray | None) -> FloatArray:
        there = step.to_act if ended is None else step.to_act & ~step.episode_done[:, None]
        blocks, flags = [], []
        for member in self.members:
            actor, rows = member.acting.actor, member.acting.actor.rows
            own, space = rows.of_agents(there).astype(np.float32), stored_space_of(actor)
            block = _raw(space, actor.observations(step)) * own[:, None]
            if ended is not None and (wanted := ended & rows.mine).any():
                chosen = rows.of_agents(wanted)
                block[chosen], own[chosen] = _raw(space, actor.final_observations(step, wanted)), 1
            blocks.append(block.reshape(len(there), -1))
            flags.append(own.reshape(len(there), -1))
        return np.concatenate([*blocks, *flags], axis=1)


def stored_space_of(actor: Actor) -> spaces.Space[Any]:
    """Return the space of observations as the learner of a policy keeps them."""
    late = actor.processing.late_normalizer
    space: spaces.Space[Any] = actor.policy.algorithm.observation_space if late is None else late.before
    return space


def action_space_of(actor: Actor) -> spaces.Space[Any]:
    """Return the space in which a policy acts."""
    return actor.policy.algorithm.action_space  # type: ignore[no-any-return]


def _width(space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.Dict):
        return sum(map(_width, space.spaces.values()))
    return int(np.prod(space.shape or ()))


def _raw(space: spaces.Space[Any], seen: Any) -> FloatArray:
    """Return observations, (n, ...), as (n, numbers) float32, which `Member.seen_at` brings back."""
    if isinstance(space, spaces.Dict):
        return np.concatenate([_raw(part, seen[key]) for key, part in space.spaces.items()], axis=1)
    array: FloatArray = np.asarray(seen, np.float32).reshape(len(seen), -1)
    return array


# --- What a policy does next -----------------------------------------------------------------------------------------


def next_actions(learner: Any) -> NextActions:
    """Return what gives the actions of a policy, (n, width), of what its agents see, for the targets of a critic.

    SAC and its kin: drawn by the present actor. TD3: by the target actor with clipped noise, as in MATD3 (Ackermann et
    al. 2019). DDPG, whose noise is clipped to 0: by the target actor. Policies that are not trained, and those of other
    algorithms: as they act.

    Raises:
        ConfigError: the policy has a memory or needs action masks, which the replay buffer does not keep.
    """
    algorithm, late = learner.algorithm, learner.actor.processing.late_normalizer
    actor: Any = getattr(algorithm, "actor", None)
    target: Any = getattr(algorithm, "actor_target", None)

    def normal(seen: Any) -> Any:
        """Return observations, as tensors, normalised by the present statistics."""
        if late is None:
            return seen
        arrays = late.normalized(map_arrays(lambda part: part.cpu().numpy(), seen))  # type: ignore[attr-defined]
        return map_arrays(lambda part: th.as_tensor(part, device=algorithm.device), arrays)  # type: ignore[arg-type,return-value]

    if target is not None:
        return lambda seen: _smoothed(algorithm, target(normal(seen))) if learner.trained else actor(normal(seen))
    if hasattr(actor, "action_log_prob"):
        return lambda seen: actor.action_log_prob(normal(seen))[0]
    if learner.actor.states or learner.actor.policy.takes_masks:
        words = f"central_critic: policy {learner.policy_id!r} has a memory or takes action masks"
        accepted = "other policies of the team without, such as sac, td3, ppo and dqn"
        raise ConfigError(f"{words}, which the replay buffer does not keep; accepted: {accepted}", key="central_critic")

    def acted(seen: Any) -> th.Tensor:
        policy = learner.actor.policy
        policy.refresh()
        observations, rows = _numpy(normal(seen), stored_space_of(learner.actor))
        decision = policy.act(PolicyInputs(observations, np.zeros(rows, np.bool_)))
        learned = decision.actions if decision.learned is None else decision.learned
        return th.as_tensor(flat(algorithm.action_space, learned), device=algorithm.device)

    return acted


def _smoothed(algorithm: Any, actions: th.Tensor) -> th.Tensor:
    limit: float = algorithm.target_noise_clip
    noise = th.randn_like(actions) * algorithm.target_policy_noise
    smoothed: th.Tensor = (actions + noise.clamp(-limit, limit)).clamp(-1, 1)
    return smoothed


def _numpy(seen: Any, space: spaces.Space[Any]) -> tuple[Any, int]:
    """Return tensors of observations as arrays of their space, and how many they are."""
    if isinstance(space, spaces.Dict):
        parts = {key: _numpy(part, space[key])[0] for key, part in seen.items()}
        return parts, len(next(iter(parts.values())))
    return seen.cpu().numpy().astype(space.dtype), len(seen)
