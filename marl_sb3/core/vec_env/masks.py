"""Action masks: read them from the envs' infos, check them, and put them into arrays.

An env returns a mask as `infos[agent]["action_mask"]`, from `reset` and `step`, for each agent that acts next. A group
of agents has masks if one of its agents has a mask when an agent of the group acts for the first time. From then on,
all agents of the group must have masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.vec_env.observations import AgentGroup, AgentLayout
from marl_sb3.core.vec_env.slot import EnvSlot
from marl_sb3.core.vec_env.step import ActionMasks
from marl_sb3.types import AgentID, Array, BoolArray
from marl_sb3.wrappers.observations import choices_of

_NO_INFO: Mapping[str, Any] = {}


def forbidden_place(masks: BoolArray, choices: Sequence[int]) -> tuple[int, ...] | None:
    """Return the first [env, column, choice] with every action forbidden; None if there is none.

    Args:
        masks: (E, A, sum of choices).
        choices: see `choices_of`.
    """
    starts = np.cumsum([0, *choices[:-1]])
    allowed = np.logical_or.reduceat(masks, starts, axis=2)
    return None if allowed.all() else tuple(np.argwhere(~allowed)[0].tolist())


def forbidden_words(choice: int, choices: Sequence[int]) -> str:
    """Describe the fault of a mask that forbids every action of a choice."""
    which = "" if len(choices) == 1 else f" of choice {choice} (counted from 0)"
    return f"{MASK} forbids every action{which}; an agent that acts needs one"


def mask_fault(mask: Array, size: int, space: spaces.Space[Any]) -> str | None:
    """Describe what is wrong with the form of one agent's mask; None if nothing is."""
    if mask.shape != (size,):
        return f"{MASK} has shape {mask.shape}; accepted: ({size},), for {space}"
    if mask.dtype != np.bool_ and not (mask.dtype.kind in "iuf" and (mask == mask.astype(np.bool_)).all()):
        return f"{MASK} is {mask.tolist()}; accepted: booleans, or 0 and 1"
    return None


class MaskReader:
    """Finds the groups that have masks, and reads the masks from the infos of separate envs.

    Args:
        layout: the agents by their spaces.
        num_envs: E.

    Attributes:
        none: the masks of envs without masks.
        idle: whether no group has masks, so that there is nothing to read.
    """

    def __init__(self, layout: AgentLayout, num_envs: int) -> None:
        self._layout = layout
        self._num_envs = num_envs
        self._choices = [choices_of(group.action_space) for group in layout.groups]
        self.none: ActionMasks = (None,) * len(layout.groups)
        self.adopt(self.none)

    def adopt(self, masks: ActionMasks) -> None:
        """Continue with the groups that have masks here; the others are checked again when an agent acts."""
        # Whether each group has masks; None: not known yet.
        self._masked: list[bool | None] = [
            True if mask is not None else None if choices else False
            for mask, choices in zip(masks, self._choices, strict=True)
        ]
        self.idle = all(masked is False for masked in self._masked)

    def read(self, slots: Sequence[EnvSlot], infos: Mapping[int, Mapping[str, Any]]) -> ActionMasks:
        """Return the masks of the agents that act next.

        Args:
            slots: the envs.
            infos: env index -> the infos that came with the present observations.

        Raises:
            EnvError: a mask is missing, has a wrong shape, or forbids every action; the message names env, episode,
                step and agent.
        """
        places = self._layout.places
        for number in [number for number, masked in enumerate(self._masked) if masked is None]:
            acting = [(slot.row, agent) for slot in slots for agent in slot.to_act if places[agent].group == number]
            if acting:
                self._settle(number, any(MASK in infos[index].get(agent, _NO_INFO) for index, agent in acting))
        if self.idle:
            return self.none
        return tuple(
            self._of_group(number, slots, infos) if masked else None for number, masked in enumerate(self._masked)
        )

    def _settle(self, number: int, masked: bool) -> None:
        """Decide whether a group has masks."""
        self._masked[number] = masked
        self.idle = all(masked is False for masked in self._masked)

    def _of_group(self, number: int, slots: Sequence[EnvSlot], infos: Mapping[int, Mapping[str, Any]]) -> BoolArray:
        agents, choices = self._layout.groups[number].agents, self._choices[number]
        assert choices is not None
        masks = np.ones((self._num_envs, len(agents), sum(choices)), dtype=np.bool_)
        for slot in slots:
            for agent in slot.to_act:
                place = self._layout.places[agent]
                if place.group == number:
                    masks[slot.row, place.group_column] = _mask(slot, agent, infos[slot.row], sum(choices))
        if (forbidden := forbidden_place(masks, choices)) is not None:
            index, column, choice = forbidden
            slot = next(slot for slot in slots if slot.row == index)
            raise slot.error(forbidden_words(choice, choices), agents[column])
        return masks


def _mask(slot: EnvSlot, agent: AgentID, infos: Mapping[str, Any], size: int) -> Array:
    info = infos.get(agent, _NO_INFO)
    if MASK not in info:
        others = "but agents with the same spaces had one when they first acted"
        accepted = "a mask whenever one of these agents acts, of ones if all is allowed; or no masks at all"
        raise slot.error(f"its infos have no {MASK}, {others}; accepted: {accepted}", agent)
    mask = np.asarray(info[MASK])
    if fault := mask_fault(mask, size, slot.view.action_space(agent)):
        raise slot.error(fault, agent)
    return mask


def read_masks(state: StateReader, groups: Sequence[AgentGroup], num_envs: int) -> ActionMasks:
    """Read the field `action_masks` of a state: per group, an array of (E, A_group, n) bool, or null.

    Raises:
        CheckpointError: the field has another form, or forbids every action of an agent.
    """
    by_group = state.listed("action_masks", len(groups))
    found: list[BoolArray | None] = []
    for name, group in zip(by_group, groups, strict=True):
        choices = choices_of(group.action_space)
        if by_group.value(name) is None:
            found.append(None)
            continue
        if choices is None:
            raise by_group.error(name, by_group.value(name), f"null, as {group.action_space} has no masks")
        masks = by_group.array(name, np.bool_, (num_envs, len(group.agents), sum(choices)))
        if forbidden_place(masks, choices) is not None:
            raise by_group.error(name, masks, "an allowed action for every agent")
        found.append(masks)
    return tuple(found)
