"""Central critics of actions for SAC, TD3 and DDPG: MASAC, MATD3 (Ackermann et al. 2019), MADDPG (Lowe et al. 2017).

They see what the env shows altogether and the actions of all agents; the actors see their own agents. The update is
SB3's own `train()`, in which these critics take the places of the policy's:

- The target of agent i is `r_i + gamma (1 - d_i) (min Q'(x', a_1', ..., a_N') - alpha log pi_i(a_i'|o_i'))`. The next
  actions are those of each agent's own policy for what it sees next: see `next_actions`.
- The actor's loss has the agent's action of the present actor, and those of the others from the replay buffer, as in
  equations 5 and 6 of Lowe et al. 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn
from typing_extensions import override

from marl_sb3.core.acting import Acted, ActingWatcher
from marl_sb3.core.learners import LearnerOptions, LearnerPart, PolicySpec, policy_rows, stored_space
from marl_sb3.core.off_policy import (
    Lines,
    TransitionDictReplayBuffer,
    TransitionReplayBuffer,
    Transitions,
    replay_buffer,
)
from marl_sb3.core.state import SavedPart, State, StateReader
from marl_sb3.core.training import MultiAgentAlgorithm, with_hook
from marl_sb3.core.vec_env import MultiAgentVecEnv, VecStep
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.central.critic import CentralCritic
from marl_sb3.extensions.central.inputs import CentralInputs
from marl_sb3.extensions.central.part import MOST_INPUTS, SAVED_NET, CentralPart, read_net, saved_net
from marl_sb3.extensions.central.team import Team, next_actions
from marl_sb3.types import Array, PolicyID

# --- Replay buffers --------------------------------------------------------------------------------------------------


class Joint(NamedTuple):
    """What is known of n transitions besides: (n, ...) each, float32; replay buffers have columns of these names."""

    central: Any  # what the critics see before it
    joint_actions: Any  # the actions of all agents
    next_central: Any  # what the critics see after it
    next_seen: Any  # what all agents observe after it, and which of them act then


class _JointLines(Lines):
    """Mixin for a replay buffer with the columns of `Joint`, which have room for no numbers until `make_room`.

    Attributes:
        added: of the transitions that are added next.
        drawn: of the latest minibatch, as tensors.
    """

    added: Joint
    drawn: Joint

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.make_room(Joint(0, 0, 0, 0))

    def make_room(self, widths: Joint) -> None:
        """Make columns of these widths.

        Raises:
            ConfigError: they need more memory than is available.
        """
        size, available = 4 * self.buffer_size * self.n_envs * sum(widths), psutil.virtual_memory().available
        if size > available:
            words = f"central_critic: what it keeps in the replay buffer needs {size / 2**30:,.1f} GiB of memory"
            raise ConfigError(
                f"{words}, and {available / 2**30:,.1f} are available; accepted: a smaller buffer_size",
                key="buffer_size",
            )
        for name, width in widths._asdict().items():
            setattr(self, name, np.zeros((self.buffer_size, self.n_envs, width), np.float32))

    @override
    def _put_observations(self, places: Any, added: Transitions) -> None:
        super()._put_observations(places, added)
        for name, array in self.added._asdict().items():
            getattr(self, name)[places] = array

    def _get_samples(self, batch_inds: Array, env: Any = None) -> Any:
        before = np.random.get_state()  # noqa: NPY002 - SB3 draws the same rows once more
        places = batch_inds, np.random.randint(0, high=self.n_envs, size=len(batch_inds))  # noqa: NPY002
        np.random.set_state(before)  # noqa: NPY002
        self.drawn = Joint(*(self.to_torch(getattr(self, name)[places]) for name in Joint._fields))
        return super()._get_samples(batch_inds, env)


class JointReplayBuffer(_JointLines, TransitionReplayBuffer):
    """A `TransitionReplayBuffer` with what central critics learn from."""

    names = (*TransitionReplayBuffer.names, *Joint._fields)


class JointDictReplayBuffer(_JointLines, TransitionDictReplayBuffer):
    """The same for `Dict` observations."""

    names = (*TransitionDictReplayBuffer.names, *Joint._fields)


_BUFFERS: Mapping[type[Lines], type[Lines]] = {
    TransitionReplayBuffer: JointReplayBuffer,
    TransitionDictReplayBuffer: JointDictReplayBuffer,
}

# --- Critics ---------------------------------------------------------------------------------------------------------


class Critics(nn.Module):
    """Several estimates of what actions of all agents are worth to one of them, in the place of critics of SB3.

    Args:
        nets: one for each estimate.
        joined: (n, width) actions of the agent itself in the latest minibatch -> what the nets see.
    """

    def __init__(self, nets: Sequence[nn.Module], joined: Callable[[th.Tensor], th.Tensor]) -> None:
        super().__init__()
        self.nets, self._joined = nn.ModuleList(nets), joined

    def forward(self, _observations: Any, actions: th.Tensor) -> tuple[th.Tensor, ...]:
        """Return the (n, 1) estimates of own actions, (n, width)."""
        seen = self._joined(actions)
        return tuple(net(seen) for net in self.nets)

    def q1_forward(self, _observations: Any, actions: th.Tensor) -> th.Tensor:
        """Return the first estimate, (n, 1)."""
        values: th.Tensor = self.nets[0](self._joined(actions))
        return values


class TwinCritics(CentralPart, ActingWatcher):
    """Takes the place of the critics of SAC, TD3 or DDPG in their updates; see `CentralSettings`."""

    def __init__(self, learner: Any, spec: PolicySpec, seed: int | None, options: LearnerOptions) -> None:
        super().__init__(learner, spec, seed, options)
        _check(learner, spec, options)
        algorithm = learner.algorithm
        if hasattr(algorithm, "update_path"):
            algorithm.update_path = "torch"  # the kernels do not have these critics
        assert options.goal_rewards is not None
        stored, rows = stored_space(learner.processing, algorithm), policy_rows(learner.rows, learner.processing)
        algorithm.replay_buffers = _BUFFERS
        algorithm.replay_buffer = replay_buffer(rows, spec, algorithm, stored, options.goal_rewards)
        del algorithm.replay_buffers
        self._widths: Joint | None = None
        self._env: MultiAgentVecEnv | None = None
        learner.trains, learner.experience.record = self.train, self.record

    # --- What they see -----------------------------------------------------------------------------------------------

    @override
    def see(self, algorithm: MultiAgentAlgorithm, callback: BaseCallback) -> None:
        _check_training(algorithm, callback)
        self._env, self._inputs = algorithm.env, CentralInputs(algorithm.env, self._learner.rows)
        self._team = Team(algorithm)
        self._next_actions = [next_actions(member.learner) for member in self._team.members]
        (self._own,) = (member for member in self._team.members if member.learner is self._learner)
        algorithm.remove_watcher(self)
        algorithm.add_watcher(self)

    @override
    def begin_episodes(self, step: VecStep) -> None:
        pass

    @override
    def restart_envs(self, env_indices: Sequence[int]) -> None:
        pass

    @override
    def after_step(self, step: VecStep) -> None:
        pass

    @override
    def before_step(self, step: VecStep, acted: Mapping[PolicyID, Acted], actions: Sequence[Array]) -> None:
        seen, done = self._inputs.of_rows(step), self._team.acted(acted)
        inputs = seen.shape[1]
        widths = Joint(inputs, done.shape[1], inputs, self._team.seen_width + self._team.agents)
        if self._widths is None:
            self._learner.buffer.make_room(widths)
            self._set(widths, self._networks(widths))
        if self._widths != widths:
            words = f"central_critic: it has learned from {self._widths}, the envs show {widths}"
            raise ConfigError(f"{words}; accepted: envs with the same agents, spaces and state", key="central_critic")
        rows = acted[self._learner.policy_id].acting
        self._before[rows] = seen[rows]
        self._done[rows] = done.repeat(self._places, axis=0)[rows]

    def record(self, transitions: Transitions) -> None:
        """Add transitions that are over with the latest step to the replay buffer; see `ReplayExperience.record`."""
        assert self._env is not None
        step, rows = self._env.latest, transitions.rows
        envs, ended = rows // self._places, np.zeros(self._learner.rows.num_rows, np.bool_)
        ended[rows] = transitions.dones.astype(np.bool_)
        after, seen = self._inputs.of_rows(step), self._team.seen(step)[envs]
        if ended.any():
            after[ended] = self._inputs.of_final(step, ended)
            seen = np.where(ended[rows, None], self._team.final(step)[envs], seen)
        buffer = self._learner.buffer
        buffer.added = Joint(self._before[rows], self._done[rows], after[rows], seen)
        buffer.add_transitions(transitions)

    # --- Networks ----------------------------------------------------------------------------------------------------

    def _networks(self, widths: Joint) -> tuple[Critics, Critics, th.optim.Adam]:
        """Return new critics, their targets, which are the same at first, and the optimizer of the critics."""
        algorithm = self._learner.algorithm
        sizes = [widths.central + widths.joint_actions, *self._settings.central_critic_net]

        def critics(joined: Callable[[th.Tensor], th.Tensor]) -> Critics:
            nets = [[*self.layers(sizes), nn.Linear(sizes[-1], 1)] for _ in range(algorithm.critic.n_critics)]
            return Critics([nn.Sequential(*layers) for layers in nets], joined)

        now: Critics = self.seeded(lambda: critics(self.now))
        after: Critics = self.seeded(lambda: critics(self.afterwards))
        return now, after, th.optim.Adam(now.parameters(), lr=algorithm.lr_schedule(1), foreach=False)

    def _set(self, widths: Joint | None, nets: Any = None, open_now: Any = None) -> None:
        """Take critics, and what was seen and done in the transitions that are not over."""
        self._widths = widths
        if widths is not None:
            rows = self._learner.rows.num_rows
            self.critics, self.targets, self.critics.optimizer = nets
            self._before, self._done = open_now or (np.zeros((rows, width), np.float32) for width in widths[:2])

    @property
    def _places(self) -> int:
        """The number of the policy's agents."""
        return len(self._learner.rows.agents)

    def now(self, actions: th.Tensor) -> th.Tensor:
        """Return what the critics see before transitions, with these actions of the agents themselves."""
        drawn = self._learner.buffer.drawn
        return th.cat([drawn.central, self._with_own(drawn.joint_actions, actions)], dim=1)

    def afterwards(self, actions: th.Tensor) -> th.Tensor:
        """Return what the critics see after transitions; the others act by their own policies."""
        drawn, blocks = self._learner.buffer.drawn, []
        flags = drawn.next_seen[:, self._team.seen_width :]
        for member, act in zip(self._team.members, self._next_actions, strict=True):
            there = flags[:, member.first_agent : member.first_agent + member.agents, None]
            if member is self._own and self._places == 1:
                blocks.append(actions * there[:, 0])
                continue
            chosen = act(member.seen_at(drawn.next_seen)).reshape(len(flags), member.agents, -1)
            blocks.append((chosen * there).flatten(1))
        joint = th.cat(blocks, dim=1)
        return th.cat([drawn.next_central, joint if self._places == 1 else self._with_own(joint, actions)], dim=1)

    def _with_own(self, joint: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """Return (n, all) actions with (n, width) others of the agents themselves."""
        drawn, own = self._learner.buffer.drawn, self._own
        places = drawn.central[:, -self._places :].argmax(dim=1, keepdim=True)  # by the code in what the critics see
        first = own.first_action + (places if self._places > 1 else 0 * places) * own.action_width
        return joint.scatter(1, first + th.arange(own.action_width, device=joint.device), actions)

    # --- Learning ----------------------------------------------------------------------------------------------------

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """Update by the algorithm's `train()`, with these critics in the places of the policy's."""
        algorithm = self._learner.algorithm
        of_policy = algorithm.critic, algorithm.critic_target
        algorithm.critic, algorithm.critic_target = self.critics, self.targets
        try:
            algorithm.train(gradient_steps=gradient_steps, batch_size=batch_size)
        finally:
            algorithm.critic, algorithm.critic_target = of_policy

    # --- State -------------------------------------------------------------------------------------------------------

    @override
    def get_state(self) -> State:
        if self._widths is None:
            return {"widths": [0, 0, 0, 0], "rows": 0, "critics": {}, "targets": {}, "before": None, "done": None}
        nets = {"critics": saved_net(self.critics, self.critics.optimizer), "targets": saved_net(self.targets)}
        open_now = {"before": self._before.copy(), "done": self._done.copy()}
        return {"widths": list(self._widths), "rows": len(self._before), **nets, **open_now}

    @override
    def read_state(self, saved: StateReader | SavedPart) -> Callable[[], None]:
        saved.require_names(["widths", "rows", "critics", "targets", "before", "done"])
        items = saved.listed("widths", len(Joint._fields))
        widths = Joint(*(items.integer(str(number), 0, MOST_INPUTS) for number in range(len(Joint._fields))))
        if not widths.central:
            return lambda: self._set(None)
        rows = saved.integer("rows", 1)
        before = saved.array("before", np.float32, (rows, widths.central))  # a file so large has so many inputs
        done = saved.array("done", np.float32, (rows, widths.joint_actions))
        self._learner.buffer.make_room(widths)  # for the transitions, which are read next
        critics, targets, optimizer = nets = self._networks(widths)
        for name, net, of_net in (("critics", critics, optimizer), ("targets", targets, None)):
            saved.fields(name).require_names([*SAVED_NET])
            read_net(saved.fields(name), net, of_net)
        goes_on = rows == self._learner.rows.num_rows  # else other episodes begin
        return lambda: self._set(widths, nets, (before, done) if goes_on else None)


class EitherCritic(LearnerPart):
    """Makes the central critic that goes with the algorithm of a policy."""

    def __new__(cls, learner: Any, *arguments: Any) -> Any:
        """Return critics of actions for an algorithm with a replay buffer, else a critic of values."""
        return (TwinCritics if hasattr(learner.algorithm, "replay_buffer") else CentralCritic)(learner, *arguments)


# --- What does not go with them --------------------------------------------------------------------------------------


def _check(learner: Any, spec: PolicySpec, options: LearnerOptions) -> None:
    """Refuse settings of a policy.

    Raises:
        ConfigError: names the setting.
    """
    kwargs = spec.values.get("policy_kwargs") or {}
    others = {
        "replay_data": ("replay_data" in spec.of_parts, "no recorded data: it lacks what the other agents did"),
        "policy_kwargs": (kwargs.get("share_features_extractor"), "share_features_extractor: false"),
        "n_steps": (spec.values["n_steps"] > 1, "n_steps=1"),
    }
    is_other = type(learner.buffer) not in _BUFFERS
    others["replay_buffer_class"] = is_other, "neither hindsight nor optimize_memory_usage"
    others["update_path"] = options.update_path == "fused", "auto or torch"
    for name, (is_refused, accepted) in others.items():
        if is_refused:
            words = f"policy {learner.policy_id!r}: central_critic does not go with this {name}; accepted: {accepted}"
            raise ConfigError(words, key=name)


def _check_training(algorithm: MultiAgentAlgorithm, callback: BaseCallback) -> None:
    """Refuse trainings in which nobody knows what the other agents see and do.

    Raises:
        ConfigError: says what it is.
    """
    reason = {
        algorithm.assignment is not None: "other policies play the agents in turn; accepted: a mapping that stays",
        algorithm.env.steps_apart: "clients step the envs, each in its own time; accepted: envs of this process",
        bool(with_hook(callback, "on_trajectory")): "on_trajectory holds transitions back; accepted: no such hook",
    }.get(True)
    if reason is not None:
        raise ConfigError(f"central_critic: {reason}", key="central_critic")
