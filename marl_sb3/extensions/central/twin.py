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

from marl_sb3.core.acting.actor import Acted, ActingWatcher
from marl_sb3.core.learners.building import policy_rows, stored_space
from marl_sb3.core.learners.learner import LearnerOptions, LearnerPart
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.off_policy.off_policy import replay_buffer
from marl_sb3.core.off_policy.replay import (
    TransitionBuffer,
    TransitionDictReplayBuffer,
    TransitionReplayBuffer,
    Transitions,
)
from marl_sb3.core.sb3.traits import trait
from marl_sb3.core.state.fields import in_order
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
from marl_sb3.core.training.callback import with_hook
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.central.critic import MOST_INPUTS, CentralCritic, CentralPart, read_seed
from marl_sb3.extensions.central.inputs import CentralInputs, Team, next_actions
from marl_sb3.types import Array, PolicyID

# --- Replay buffers --------------------------------------------------------------------------------------------------


class Joint(NamedTuple):
    """What is known of n transitions besides: (n, ...) each, float32; replay buffers have columns of these names."""

    central: Any  # what the critics see before it
    joint_actions: Any  # the actions of all agents
    next_central: Any  # what the critics see after it
    next_seen: Any  # what all agents observe after it, and which of them act then


class _JointLines(TransitionBuffer):
    """Mixin for a replay buffer with the columns of `Joint`, which have room for no numbers until `make_room`.

    Attributes:
        widths: of the columns; 0 before the first transitions are added.
        drawn: of the latest minibatch, as tensors.
    """

    widths: Joint
    drawn: Joint

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.make_room(Joint(0, 0, 0, 0))

    def add_transitions(self, added: Transitions) -> None:
        """See `TransitionBuffer.add_transitions`; `more` of them is what `Joint` names."""
        widths = Joint(*(added.more[name].shape[1] for name in Joint._fields))
        if not self.widths.central:
            self.make_room(widths)
        if self.widths != widths:
            words = f"central_critic: it has learned from {self.widths}, the envs show {widths}"
            raise ConfigError(f"{words}; accepted: envs with the same agents, spaces and state", key="central_critic")
        super().add_transitions(added)

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
        self.widths = widths

    @override
    def _put_observations(self, places: Any, added: Transitions) -> None:
        super()._put_observations(places, added)
        for name in Joint._fields:
            getattr(self, name)[places] = added.more[name]

    def _samples_at(self, lines: Array, columns: Array, env: Any) -> Any:
        drawn = (getattr(self, name)[lines, columns] for name in Joint._fields)
        self.drawn = Joint(*map(self.to_torch, drawn))
        return super()._samples_at(lines, columns, env)


class JointReplayBuffer(_JointLines, TransitionReplayBuffer):
    """A `TransitionReplayBuffer` with what central critics learn from."""

    names = (*TransitionReplayBuffer.names, *Joint._fields)


class JointDictReplayBuffer(_JointLines, TransitionDictReplayBuffer):
    """The same for `Dict` observations."""

    names = (*TransitionDictReplayBuffer.names, *Joint._fields)


_BUFFERS: Mapping[type[TransitionBuffer], type[TransitionBuffer]] = {
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
        self.optimizer: Any = None  # of those that are trained

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
        self._env: MultiAgentVecEnv | None = None
        self._before = self._done = np.zeros((0, 0), np.float32)  # what was seen and done in open transitions
        if trait(learner.algorithm, "update_path") is not None:
            learner.algorithm.update_path = "torch"  # the kernels do not have these critics
        if self.acts_here:
            learner.experience.record = self.record
        if self._learns_here:
            _check(learner, spec, options)
            self._prepare_to_learn(spec, options)

    def _prepare_to_learn(self, spec: PolicySpec, options: LearnerOptions) -> None:
        learner, algorithm = self._learner, self._learner.algorithm
        assert options.goal_rewards is not None
        stored, rows = stored_space(learner.processing, algorithm), policy_rows(learner.rows, learner.processing)
        algorithm.replay_buffers = _BUFFERS
        algorithm.replay_buffer = replay_buffer(rows, spec, algorithm, stored, options.goal_rewards)
        del algorithm.replay_buffers
        self._has_nets = False
        self.critics: Critics
        self.targets: Critics
        learner.trains = self.train

    # --- What they see -----------------------------------------------------------------------------------------------

    @override
    def check_training(self, algorithm: MultiAgentAlgorithm, callback: BaseCallback) -> None:
        reason = {
            algorithm.assignment is not None: "other policies play the agents in turn; accepted: a mapping that stays",
            algorithm.env.steps_apart: "clients step the envs, each in its own time; accepted: envs of this process",
            bool(with_hook(callback, "on_trajectory")): "on_trajectory holds transitions back; accepted: no such hook",
        }.get(True)
        if reason is not None:
            raise ConfigError(f"central_critic: {reason}", key="central_critic")

    @override
    def attach(self, env: MultiAgentVecEnv, acting: Mapping[PolicyID, Any]) -> ActingWatcher:
        self._env, self._inputs, self._team = env, CentralInputs(env, self._learner.rows), Team(env, acting)
        if self._learns_here:
            self._next_actions = [next_actions(member.acting) for member in self._team.members]
            (self._own,) = (member for member in self._team.members if member.policy_id == self._learner.policy_id)
        return self

    @override
    def before_step(self, step: VecStep, acted: Mapping[PolicyID, Acted], actions: Sequence[Array]) -> None:
        seen, done = self._inputs.of_rows(step), self._team.acted(acted).repeat(self._places, axis=0)
        if (self._before.shape, self._done.shape) != (seen.shape, done.shape):  # it is the first step
            self._before, self._done = np.zeros_like(seen), np.zeros_like(done)
        rows = acted[self._learner.policy_id].acting
        self._before[rows], self._done[rows] = seen[rows], done[rows]

    def record(self, transitions: Transitions) -> None:
        """Add transitions that are over with the latest step, with what is known of them besides.

        See `ReplayExperience.record`.
        """
        assert self._env is not None
        step, rows = self._env.latest, transitions.rows
        envs, ended = rows // self._places, np.zeros(self._learner.rows.num_rows, np.bool_)
        ended[rows] = transitions.dones.astype(np.bool_)
        after, seen = self._inputs.of_rows(step), self._team.seen(step)[envs]
        if ended.any():
            after[ended] = self._inputs.of_final(step, ended)
            seen = np.where(ended[rows, None], self._team.final(step)[envs], seen)
        joint = Joint(self._before[rows], self._done[rows], after[rows], seen)
        self._learner.buffer.add_transitions(transitions._replace(more=joint._asdict()))

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

    def _take(self, nets: tuple[Critics, Critics, th.optim.Adam] | None, seed: int) -> None:
        self._has_nets, self._seed = nets is not None, seed
        if nets is not None:
            self.critics, self.targets, self.critics.optimizer = nets

    def _make(self) -> None:
        """Make the critics, if there are none."""
        if not self._has_nets:
            self._take(self._networks(self._learner.buffer.widths), self._seed)

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
        self._make()
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
        open_now = {"rows": len(self._before), "before": self._before.copy(), "done": self._done.copy()}
        if not self._learns_here:  # the rest is beside the learner
            return open_now
        of_learner: State = {
            "widths": list(self._learner.buffer.widths),
            "critics": {"seed": self._seed},
            "targets": {},
        }
        if self._learner.buffer.widths.central:
            self._make()
            of_learner["critics"] = saved_net(self.critics, self.critics.optimizer)
            of_learner["targets"] = saved_net(self.targets)
        return {**of_learner, **open_now}

    @override
    def read_state(self, saved: StateReader) -> Callable[[], None]:
        of_learner = ["widths", "critics", "targets"] if self._learns_here else []
        saved.require_names([*of_learner, "rows", "before", "done"])
        rows, before = saved.integer("rows", 0), np.zeros((0, 0), np.float32)
        opened = {"_before": before, "_done": before}
        if rows:
            opened = {f"_{name}": saved.array(name, np.float32, (rows, None)) for name in ("before", "done")}

        def put_open() -> None:
            vars(self).update(opened)

        return in_order([put_open, self._read_critics(saved)]) if self._learns_here else put_open

    def _read_critics(self, saved: StateReader) -> Callable[[], None]:
        items = saved.listed("widths", len(Joint._fields))
        widths = Joint(*(items.integer(str(number), 0, MOST_INPUTS) for number in range(len(Joint._fields))))
        if not widths.central:
            seed = read_seed(saved.fields("critics"), self._seed)
            return lambda: self._take(None, seed)
        for name in ("critics", "targets"):  # a file so large has so many inputs
            first = self._settings.central_critic_net[0], widths.central + widths.joint_actions
            saved.fields(name).fields("weights").array("nets.0.0.weight", np.float32, first)
        self._learner.buffer.make_room(widths)  # for the transitions, which are read next
        critics, targets, optimizer = nets = self._networks(widths)
        for name, net, of_net in (("critics", critics, optimizer), ("targets", targets, None)):
            read_net(saved.fields(name), net, of_net)
        return lambda: self._take(nets, self._seed)


class CriticSelector(LearnerPart):
    """Makes the central critic that goes with the algorithm of a policy."""

    acts = True

    def __new__(cls, learner: Any, *arguments: Any) -> Any:
        """Return critics of actions for an algorithm with a replay buffer, else a critic of values."""
        return (TwinCritics if hasattr(learner.algorithm, "replay_buffer") else CentralCritic)(learner, *arguments)  # type: ignore[abstract]


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
    is_other = not isinstance(learner.buffer, tuple(_BUFFERS))
    others["replay_buffer_class"] = is_other, "neither hindsight nor optimize_memory_usage"
    others["update_path"] = options.update_path == "fused", "auto or torch"
    for name, (is_refused, accepted) in others.items():
        if is_refused:
            words = f"policy {learner.policy_id!r}: central_critic does not go with this {name}; accepted: {accepted}"
            raise ConfigError(words, key=name)


# --- A network and its optimizer --------------------------------------------------------------------------------------

_MOMENTS = {"exp_avg": None, "exp_avg_sq": 0.0}  # what Adam remembers, and the least numbers of it


def saved_net(net: nn.Module, optimizer: th.optim.Optimizer | None = None) -> State:
    """Return the weights of a network, and what its optimizer remembers, as plain data and arrays."""
    moments, steps = dict[str, Array](), 0
    for name, parameter in net.named_parameters():
        own = {} if optimizer is None else optimizer.state.get(parameter)
        if own:
            steps = int(own["step"])
            moments |= {f"{name}.{key}": own[key].cpu().numpy().copy() for key in _MOMENTS}
    return {"weights": _weights(net), "moments": moments, "steps": steps}


def read_net(saved: StateReader, net: nn.Module, optimizer: th.optim.Optimizer | None = None) -> None:
    """Set a network and its optimizer to what `saved_net` returned.

    Raises:
        CheckpointError: it is of another network.
    """
    saved.require_names(["weights", "moments", "steps"])
    weights = saved.like("weights", _weights(net))
    net.load_state_dict({name: th.from_numpy(np.array(array)) for name, array in weights.items()})
    steps = saved.integer("steps", 0)
    if not steps or optimizer is None:
        return
    parameters = dict(net.named_parameters())
    moments = saved.fields("moments")
    moments.require_names([f"{name}.{key}" for name in parameters for key in _MOMENTS])
    for name, own in parameters.items():
        kept = {
            key: th.from_numpy(moments.array(f"{name}.{key}", np.float32, own.shape, lowest)).to(own.device)
            for key, lowest in _MOMENTS.items()
        }
        optimizer.state[own] = {"step": th.tensor(float(steps)), **kept}


def _weights(net: nn.Module) -> dict[str, Array]:
    return {name: tensor.cpu().numpy().copy() for name, tensor in net.state_dict().items()}
