"""Convert a policy to an ONNX graph from the env's observations to actions, values and the action distribution.

Action masks are a further input, recurrent states further inputs and outputs. The graph includes SB3's pre- and
postprocessing: channels-first images divided by 255, one-hot encoding, actions clipped to their Box. Of our own
processing it includes normalised observations and rescaled actions; other processing keeps a memory, or has no
counterpart in ONNX: the graph of such a policy takes processed observations, and the metadata of the file say how they
are made. `onnx_packages` imports onnx, onnxscript and onnxruntime, which are optional.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from dataclasses import dataclass
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from marl_sb3.core.config.algorithms import place_of
from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.processing.processing import NormalizeObservations, Processing, RescaleActions
from marl_sb3.core.processing.processors import WHOLE
from marl_sb3.core.sb3.inference import critic_states, initial_states, takes_masks
from marl_sb3.core.sb3.policies import take_single_steps
from marl_sb3.core.sb3.private import integer_sizes, unchecked_distributions
from marl_sb3.core.vec_env.observations import ZeroBased, stacked
from marl_sb3.errors import ConfigError, ExportError, install_words
from marl_sb3.types import Array
from marl_sb3.wrappers.observations import choices_of

_IN_GRAPH = {"normalize_observations"}
_FROM_ZERO = ZeroBased(spaces.Discrete(1))  # changes nothing


@dataclass(frozen=True)
class GraphProcessing:
    """What a graph does before and after the policy."""

    # of the observations; None: the graph takes them as the policy sees them
    normalize: NormalizeObservations | None = None
    rescale: RescaleActions | None = None  # of the actions; None: they stay in the policy's space
    seen: ZeroBased = _FROM_ZERO  # the graph's observations counted from 0, as the policy counts them
    done: ZeroBased = _FROM_ZERO  # the graph's actions counted from 0

    def observation(self, key: str, observation: th.Tensor) -> th.Tensor:
        """Process one input of the graph; `key` is its key in a Dict, or empty."""
        if key in self.seen.shifts:
            return observation - th.as_tensor(self.seen.shifts[key])
        if self.normalize is None or key not in self.normalize.statistics:
            return observation
        statistics, clip = self.normalize.statistics[key], self.normalize.clip
        mean = th.as_tensor(np.array(statistics.mean))
        deviation = th.as_tensor(np.sqrt(statistics.var + self.normalize.epsilon))
        return ((observation.double() - mean) / deviation).clamp(-clip, clip).float()

    def actions(self, actions: th.Tensor) -> th.Tensor:
        """Process the actions of the graph."""
        if WHOLE in self.done.shifts:
            return actions + th.as_tensor(self.done.shifts[WHOLE])
        if self.rescale is None:
            return actions
        low, high = (th.as_tensor(bound, dtype=actions.dtype) for bound in (self.rescale.low, self.rescale.high))
        return th.minimum(th.maximum(low + (actions + 1) * 0.5 * (high - low), low), high)


UNPROCESSED = GraphProcessing()


def graph_of(
    processing: Processing, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> tuple[GraphProcessing, spaces.Space[Any], dict[str, str]]:
    """Return what a graph contains of a policy's processing, its input space, and its metadata.

    Args:
        processing: of the policy.
        observation_space: of the env.
        action_space: of the env.
    """
    done = ZeroBased(action_space)
    normalize = processing.processors.get("normalize_observations")
    if set(processing.processors) <= _IN_GRAPH:
        assert normalize is None or isinstance(normalize, NormalizeObservations)
        metadata = {"input": "observations of the env"} if processing.settings.changed() else {}
        seen = ZeroBased(observation_space)
        return GraphProcessing(normalize, processing.rescale, seen, done), observation_space, metadata
    described = {
        "settings": processing.settings.changed(),
        "order": list(processing.processors),
        "env_observation_space": str(processing.env_observation_space),
        "observation_space": str(processing.observation_space),
        "statistics": {
            name: {"mean": np.array(running.mean).tolist(), "var": np.array(running.var).tolist()}
            for name, running in processing.statistics.items()
        },
    }
    metadata = {"input": "processed observations", "processing": json.dumps(described)}
    return GraphProcessing(None, processing.rescale, done=done), processing.observation_space, metadata


INPUT = "observation"
START, MASKS = "episode_start", "action_masks"  # the latter is the argument of sb3-contrib's policies
STATES = ("hidden_state", "cell_state")
CRITIC_STATES = ("critic_hidden_state", "critic_cell_state")
NEXT = "next_"  # before the name of a state: the output that goes in as that state in the next call

# What an input or output means, in the file's metadata; an input's name is that before its point.
_MEANINGS = {
    INPUT: "what the agent sees in the env; processed, where the entry `processing` says how",
    MASK: "true where an action is allowed, for the values of each choice after those of the previous one; at least one"
    " of each choice has to be allowed",
    **dict.fromkeys((*STATES, *CRITIC_STATES), "zeros in the first call, then what the previous call returned"),
    START: "true where an episode begins: the states are not used there",
    "actions": "the most likely action, in the env's action space",
    "values": "the critic's value of the observation",
    "logits": "log-probabilities of the values of each choice; of a MultiBinary without masks, the log-odds of 1",
    "mean": "mean of the normal distribution of actions, before they are clipped, squashed or rescaled",
    "log_std": "logarithm of that distribution's standard deviation",
    "q_values": "the value of each action",
    **{f"{NEXT}{name}": f"{name} of the next call" for name in (*STATES, *CRITIC_STATES)},
}

Outputs = tuple[th.Tensor, ...]


def onnx_packages() -> tuple[ModuleType, ModuleType]:
    """Import and return the modules onnx and onnxruntime.

    Raises:
        ConfigError: one of them, or onnxscript, which PyTorch's exporter needs, is not installed.
    """
    try:
        onnx, runtime, _ = (importlib.import_module(name) for name in ("onnx", "onnxruntime", "onnxscript"))
    except ImportError as error:
        missing = f"the package {error.name}, which cannot be imported; {install_words('onnx')}"
        raise ConfigError(f"the format onnx needs {missing}") from error
    return onnx, runtime


# --- What comes out ---------------------------------------------------------------------------------------------------

_DISTRIBUTIONS: Mapping[Any, tuple[str, ...]] = {
    DiagGaussianDistribution: ("mean", "log_std"),
    StateDependentNoiseDistribution: ("mean", "log_std"),
    CategoricalDistribution: ("logits",),
    MultiCategoricalDistribution: ("logits",),
    BernoulliDistribution: ("logits",),
}  # -> the names of its parameters
# By their places, since sb3-contrib is imported only by those who use it.
_MASKABLE = "sb3_contrib.common.maskable"
_MASKABLE_POLICY = f"{_MASKABLE}.policies:MaskableActorCriticPolicy"
_RECURRENT_POLICY = "sb3_contrib.common.recurrent.policies:RecurrentActorCriticPolicy"


def _is_a(policy: Any, place: str) -> bool:
    return any(place_of(base) == place for base in type(policy).__mro__)


def more_inputs(algorithm: BaseAlgorithm, rows: int) -> dict[str, Array]:
    """Return what a graph takes besides observations, by name, as in the first step of an episode: see `PolicyGraph`.

    Raises:
        ConfigError: the policy takes masks or has a memory, but is not of a class of sb3-contrib or marl_sb3 for that.
    """
    own, masked = initial_states(algorithm, rows), takes_masks(algorithm)
    knows_masks = has_q_values(algorithm.policy) or (own and MASKS in signature(algorithm.policy.forward).parameters)
    foreign = masked and not knows_masks
    for takes, what, place in ((bool(own), "recurrent state", _RECURRENT_POLICY),
                               (foreign, "action masks", _MASKABLE_POLICY)):  # fmt: skip
        if takes and not _is_a(algorithm.policy, place) and not _remembers(algorithm.policy):
            words = f"{type(algorithm.policy).__name__} needs {what} and is no {place.partition(':')[2]}"
            raise ConfigError(f"{words}, so that it has no ONNX form; an SB3 zip holds it")
    masks = np.ones((rows, sum(choices_of(algorithm.action_space) or ())), dtype=np.bool_)
    of_masks = {MASK: masks} if masked else {}
    if not own:
        return of_masks
    critic = () if _remembers(algorithm.policy) else critic_states(algorithm, rows)  # which may have none
    of_critic = dict(zip(CRITIC_STATES, critic, strict=False))
    return {**dict(zip(STATES, own, strict=True)), **of_critic, START: np.zeros(rows, dtype=np.bool_), **of_masks}


def _remembers(policy: Any) -> bool:
    """Whether a policy is one with memory of marl_sb3: RecurrentDQN's or RecurrentSAC's."""
    return hasattr(policy, "remember")


def has_q_values(policy: Any) -> bool:
    """Whether a policy has a value for each action, or quantiles of it, as DQN's and QR-DQN's."""
    return hasattr(policy, "q_net") or hasattr(policy, "quantile_net")


def outputs_of(policy: Any) -> tuple[str, ...]:
    """Return the names of the outputs of a policy's graph.

    Raises:
        ConfigError: it is not one of SB3's policies, or its action distribution is not supported.
    """
    if has_q_values(policy):
        return "actions", "q_values"
    distribution = type(getattr(policy, "action_dist", None))
    if isinstance(getattr(policy, "actor", None), nn.Module):
        return "actions", *_DISTRIBUTIONS.get(distribution, ())
    if isinstance(policy, ActorCriticPolicy) and distribution in _DISTRIBUTIONS:
        return "actions", "values", *_DISTRIBUTIONS[distribution]
    if _is_a(policy, _MASKABLE_POLICY) and distribution.__module__ == f"{_MASKABLE}.distributions":
        return "actions", "values", "logits"
    raise ConfigError(
        f"{type(policy).__name__} with {distribution.__name__} has no ONNX form; accepted: SB3's actor-critic "
        f"policies with {', '.join(cls.__name__ for cls in _DISTRIBUTIONS)}"
    )


def outputs(policy: Any, observations: Any, more: Mapping[str, th.Tensor]) -> Outputs:
    """Compute the outputs of a policy. An actor's actions are from -1 to 1.

    Args:
        more: the inputs of `more_inputs`.
    """
    masks = {MASKS: more[MASK]} if MASK in more else {}
    if _remembers(policy):
        hidden, kept = policy.remember(observations, tuple(more[name] for name in STATES), more[START])
        values = (policy.q_net.q_net(hidden),) if has_q_values(policy) else ()
        return policy.choose(hidden, deterministic=True), *values, *kept
    if START in more:
        from sb3_contrib.common.recurrent.type_aliases import RNNStates  # it has made the policy

        states = [tuple(more[name] for name in names if name in more) for names in (STATES, CRITIC_STATES)]
        after: Any
        actions, values, _, after = policy(observations, RNNStates(*states), more[START], deterministic=True, **masks)
        kept = (*after.pi, *(after.vf if states[1] else ()))
        return actions, values.flatten(), *_parameters(policy), *kept
    if hasattr(policy, "predict_values"):
        actions, values, _ = policy(observations, deterministic=True, **masks)
        return actions, values.flatten(), *_parameters(policy)
    if has_q_values(policy):
        of_quantiles = hasattr(policy, "quantile_net")
        values = policy.quantile_net(observations).mean(dim=1) if of_quantiles else policy.q_net(observations)
        allowed = values.masked_fill(~more[MASK], -th.inf) if MASK in more else values
        return th.argmax(allowed, dim=1), values
    if type(getattr(policy, "action_dist", None)) in _DISTRIBUTIONS:  # IQL
        return policy(observations, deterministic=True), *_parameters(policy)
    of_actor = getattr(policy.actor, "get_action_dist_params", None)  # SAC, TQC, CrossQ: the mode of the distribution
    return (policy.actor(observations) if of_actor is None else th.tanh(of_actor(observations)[0]),)


def _parameters(policy: Any) -> Outputs:
    """Return the parameters of the distribution of the actions that a policy has just taken."""
    distribution: Any = parts_of_distribution(policy.action_dist)
    if isinstance(distribution, list):  # of a MultiDiscrete space
        return (th.cat([part.logits for part in distribution], dim=1),)
    if not isinstance(distribution, th.distributions.Normal):
        return (distribution.logits,)
    if isinstance(policy.action_dist, DiagGaussianDistribution):
        return distribution.mean, policy.log_std.expand_as(distribution.mean)
    return distribution.mean, distribution.stddev.log()


class PolicyGraph(nn.Module):
    """The module that is exported: a copy of a policy on the CPU, with its pre- and postprocessing.

    Args:
        observation_space: of what the graph takes; an image may have its channels last.
        processing: what the graph does around the policy.

    Raises:
        ConfigError: it is not one of SB3's policies, or its action distribution is not supported.
    """

    def __init__(
        self, algorithm: BaseAlgorithm, observation_space: spaces.Space[Any], processing: GraphProcessing
    ) -> None:
        super().__init__()
        self._more = tuple(more_inputs(algorithm, 1))
        states = [f"{NEXT}{name}" for name in self._more if name in (*STATES, *CRITIC_STATES)]
        # `actions` (batch, *action shape). Of an on-policy algorithm also `values` (batch,), then `logits` (batch,
        # choices), which are log-probabilities except for MultiBinary, or `mean` and `log_std` (batch, numbers) before
        # any squashing; then each state with `next_` before its name. Of DQN and QRDQN `q_values` (batch, choices).
        # Of IQL what on-policy algorithms have, but no `values`.
        self.output_names = (*outputs_of(algorithm.policy), *states)
        policy: Any = copy_on_cpu(algorithm)
        if states:
            take_single_steps(policy)
        self.policy = policy
        self._processing = processing
        inputs, inner = by_input(observation_space), by_input(algorithm.observation_space)
        self._keys = tuple(observation_space.spaces) if isinstance(observation_space, spaces.Dict) else ()
        self._channels_last = [space.shape != inner[name].shape for name, space in inputs.items()]
        # `observation`, or `observation.<key>` for each key of a Dict. With masks also `action_mask` (batch, choices)
        # bool. With memory also `hidden_state` and `cell_state` (layers, batch, size), the same with
        # `critic_` before it if the critic has an LSTM of its own, and `episode_start` (batch,) bool.
        self.input_names = (*inputs, *self._more)

    def forward(self, *given: th.Tensor) -> Outputs:
        """Return the outputs for a batch of each input."""
        keys = self._keys or ("",)
        observations, more = given[: len(keys)], dict(zip(self._more, given[len(keys) :], strict=True))
        processed = [self._processing.observation(*each) for each in zip(keys, observations, strict=True)]
        prepared = [
            observation.permute(0, 3, 1, 2) if channels_last else observation
            for observation, channels_last in zip(processed, self._channels_last, strict=True)
        ]
        seen = dict(zip(self._keys, prepared, strict=True)) if self._keys else prepared[0]
        actions, *others = outputs(self.policy, seen, more)
        return self._processing.actions(self._within_space(actions)), *others

    def _within_space(self, actions: th.Tensor) -> th.Tensor:
        """Clip or rescale actions as SB3's `BasePolicy.predict` does."""
        space = self.policy.action_space
        if not isinstance(space, spaces.Box):
            return actions
        low, high = (th.as_tensor(bound.reshape(-1), dtype=actions.dtype) for bound in (space.low, space.high))
        if self.policy.squash_output:
            actions = low + 0.5 * (actions + 1.0) * (high - low)
        else:
            actions = th.minimum(th.maximum(actions, low), high)
        return actions.reshape(-1, *space.shape)


def by_input(observed: Any) -> dict[str, Any]:
    """Return observations, or the parts of their space, by the names of a graph's inputs."""
    # The prefix keeps keys from having the name of something else in the graph.
    return {f"{INPUT}.{key}": observed[key] for key in observed} if isinstance(observed, Mapping) else {INPUT: observed}


def parts_of_distribution(distribution: Any) -> Any:
    """Return PyTorch's distribution in one of SB3's; of several choices, a list of them."""
    return distribution.distributions if hasattr(distribution, "distributions") else distribution.distribution


def copy_on_cpu(algorithm: BaseAlgorithm) -> ActorCriticPolicy:
    """Make a copy of the policy as SB3's `_setup_model` does: `deepcopy` fails on a trained one."""
    make: Any = type(algorithm.policy)
    # Off-policy algorithms keep it among the arguments of the policies that take it.
    use_sde = {"use_sde": algorithm.use_sde} if isinstance(algorithm.policy, ActorCriticPolicy) else {}
    with th.random.fork_rng(devices=[]), integer_sizes():
        copy: ActorCriticPolicy = make(
            deepcopy(algorithm.observation_space),  # CNNs draw a sample from it
            algorithm.action_space,
            algorithm.lr_schedule,
            **{**use_sde, **deepcopy(algorithm.policy_kwargs)},
        )
    copy.load_state_dict(algorithm.policy.state_dict())
    copy.set_training_mode(False)
    return copy.requires_grad_(False)


# --- The file --------------------------------------------------------------------------------------------------------


def to_onnx(
    algorithm: BaseAlgorithm,
    observation_space: spaces.Space[Any],
    metadata: Mapping[str, str],
    processing: GraphProcessing = UNPROCESSED,
) -> bytes:
    """Return the content of an ONNX file of a policy.

    Args:
        algorithm: the policy's algorithm; it is not changed.
        observation_space: of what the graph takes.
        metadata: of the file.
        processing: what the graph does around the policy.

    Returns:
        A model with the inputs and outputs of `PolicyGraph`; the batch axis of each is free.

    Raises:
        ConfigError: such a policy cannot be exported, or a package is missing.
        ExportError: PyTorch cannot convert the network.
    """
    onnx, _ = onnx_packages()
    graph = PolicyGraph(algorithm, observation_space, processing).eval()
    space = deepcopy(observation_space)
    # PyTorch would take a batch of 1 for a fixed length.
    observations = by_input(stacked([space.sample() for _ in range(2)]))
    program = _traced(graph, {**observations, **more_inputs(algorithm, 2)})
    for value in (value for node in program.model.graph.all_nodes() for value in node.outputs):
        if value.name in graph.output_names and not value.is_graph_output():  # named after an operation, such as `mean`
            value.name = f"inner.{value.name}"
    model = _without_traces(program.model_proto)
    described = {
        "inputs": json.dumps(_described(onnx, model.graph.input)),
        "outputs": json.dumps(_described(onnx, model.graph.output)),
    }
    onnx.helper.set_model_props(model, {**metadata, **described})
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _described(onnx: ModuleType, values: Any) -> dict[str, Any]:
    """Return dtype, shape and meaning of inputs or outputs of a model."""
    described = {}
    for value in values:
        kind = value.type.tensor_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)).name
        shape = [axis.dim_param or axis.dim_value for axis in kind.shape.dim]
        described[value.name] = {"dtype": dtype, "shape": shape, "meaning": _MEANINGS[value.name.partition(".")[0]]}
    return described


def _traced(graph: PolicyGraph, inputs: Mapping[str, Array]) -> Any:
    """Return PyTorch's `ONNXProgram` of the graph."""
    batch = th.export.Dim("batch")
    examples = tuple(th.as_tensor(array) for array in inputs.values())
    axes = tuple({1 if name in (*STATES, *CRITIC_STATES) else 0: batch} for name in inputs)
    try:
        with _quiet_exporter():
            return th.onnx.export(
                graph,
                examples,
                input_names=graph.input_names,
                output_names=graph.output_names,
                dynamic_shapes=(axes,),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except th.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ExportError(f"PyTorch cannot turn the policy's network into an ONNX graph: {reason}") from error


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence PyTorch: it warns of packages that are not needed, and prints graphs on which it fails.

    Its distributions do not check their arguments, which a graph cannot do.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with unchecked_distributions(), warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch 2.13 warns about its own code
            # It puts stand-ins for the weights of an LSTM in their place while it looks at the graph.
            warnings.filterwarnings("ignore", message=r"The tensor attributes self\.policy\.[\w.]+\._flat_weights")
            # All inputs share one batch axis, as intended.
            warnings.filterwarnings("ignore", message=r".*The axis name: batch will not be used")
            yield
    finally:
        logging.disable(disabled)


def _without_traces(model: Any) -> Any:
    """Remove the stack traces that PyTorch attaches to nodes: they contain paths of this machine."""
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
        del part.metadata_props[:]
        part.doc_string = ""
    for part in (model.graph, model):
        del part.metadata_props[:]
    return model
