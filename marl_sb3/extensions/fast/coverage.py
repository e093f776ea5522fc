"""Which policies the fused kernels cover: plain MLPs on vectors with known optimizers, without changed methods.

The functions say which classes, spaces and settings the kernels know; PyTorch trains all else. `PathStillValid` notices
when somebody changes a covered policy later.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import chain, pairwise
from operator import attrgetter, eq, is_, is_not, itemgetter
from pathlib import Path
from types import FunctionType
from typing import Any

import torch as th
import typing_extensions
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from marl_sb3.core.config.algorithms import place_of
from marl_sb3.core.policies import MlpFeatures
from marl_sb3.core.sb3.traits import trait
from marl_sb3.extensions.fast.kernel_tables import OPTIMIZERS, linears, parameters_of

ACTIVATIONS = (nn.Tanh, nn.ReLU)  # in the order of the constants in `kernels.layers`


class PathStillValid:
    """Whether the fused path of one algorithm still computes what PyTorch would.

    The kernels replace the calls of all modules of the policy, and the steps of the optimizers. That is right only
    while the modules, the methods, the tensors and the optimizers are those that the kernels were made for.

    Args:
        algorithm: the algorithm; it has its policy for good.
        layers: the linear layers that the kernels run.
        others: the tensors that the kernels read besides the parameters of these layers.
        trained: each optimizer that the kernels replace, with the parameters that it has to hold, in order.
        optimizers: the classes of optimizers that the kernels have.
        settings: objects with the names of the attributes that decide whether the kernels cover them. The kernels
            replace the methods of these objects and of the attributes.
    """

    def __init__(
        self,
        algorithm: Any,
        layers: Iterable[nn.Linear],
        *,
        others: Iterable[th.Tensor] = (),
        trained: Iterable[tuple[th.optim.Optimizer, Iterable[th.Tensor]]] = (),
        optimizers: Sequence[type[th.optim.Optimizer]] = (th.optim.Adam,),
        settings: Iterable[tuple[Any, Sequence[str]]] = (),
    ) -> None:
        self._algorithm = algorithm
        self._policy: nn.Module = algorithm.policy
        self.layers = list(layers)  # those layers
        self._others = list(others)
        self._trained = [(optimizer, list(parameters)) for optimizer, parameters in trained]
        self.trains = bool(self._trained)  # whether the kernels replace an optimizer
        self._optimizers = optimizers
        self._settings = [(owner, list(names)) for owner, names in settings]
        self._modules = list(self._policy.modules())
        self._members = [vars(module) for module in self._modules]
        self._hooks = [members[kind] for kind in _HOOKS for members in self._members]
        stood_for = (
            [owner for owner, _ in self._settings] + self._values() + [optimizer for optimizer, _ in self._trained]
        )
        # Objects whose methods may be replaced; spaces only describe, and of modules, the members are counted.
        self._stood_for = [
            owner
            for owner in {id(each): each for each in stood_for if hasattr(each, "__dict__")}.values()
            if not isinstance(owner, (nn.Module, spaces.Space, type))
        ]
        others = [each for each in self._stood_for if not isinstance(each, th.Tensor)]  # a class of C
        kinds = dict.fromkeys(map(type, [algorithm, *self._modules, *others]))
        bases = dict.fromkeys(base for kind in kinds for base in kind.__mro__)
        self._bases = [base for base in bases if base.__module__.partition(".")[0] in _LIBRARIES]
        self._of_bases = [dict(vars(base)) for base in self._bases]
        # Those that compute with parts of theirs; the layers have their parameters among the tensors.
        self._with_parts = {
            "_modules": [vars(module) for module in self._modules if type(module) not in _LEAVES],
            "_parameters": [
                vars(module) for module in self._modules if module._parameters and module not in self.layers
            ],
        }
        self._registered = RemovableHandle.next_id  # counts all hooks that PyTorch has ever got
        self._objects, self._facts = self._look()
        # The kernels may know addresses: `tensor.data = ...` must not free what they point to.
        self._memory = [tensor.detach() for tensor in self._tensors() if tensor is not None]

    def why_not(self) -> str | None:
        """Return why the kernels would not compute what PyTorch does; None if they would."""
        if _any_hook(self._hooks):
            return "hooks of the network"
        replaced = next(filter(has_replaced_methods, [*self._modules, *self._stood_for]), None)
        if replaced is not None:
            return f"replaced methods of {type(replaced).__name__}"
        if (method := next(filter(None, map(replaced_method, self._bases)), None)) is not None:
            return f"a replaced {method}"
        reason = _why_not_layers(self.layers) or _why_not_tensors(self._tensors())
        for optimizer, parameters in self._trained:
            reason = reason or why_not_optimizer(optimizer, self._optimizers)
            if reason is None and not _are_same(optimizer.param_groups[0]["params"], parameters):
                reason = "an optimizer of other parameters"
        known = {id(tensor) for tensor in self._tensors()}
        trains_others = any(id(tensor) not in known for _, parameters in self._trained for tensor in parameters)
        return reason or ("parameters that no layer has" if trains_others else None)

    def holds(self) -> bool:
        """Whether nothing has changed since this object was made; it takes less time than a new check.

        The values of parameters may change; modules, parameters, their memory, optimizers and settings may not.
        """
        registered = RemovableHandle.next_id
        if registered != self._registered:  # since then, something got a hook
            if _any_hook(self._hooks) or any(map(_is_frozen_or_hooked, filter(_is_there, self._tensors()))):
                return False
            self._registered = registered
        if not all(map(eq, map(vars, self._bases), self._of_bases)):
            return False
        objects, facts = self._look()
        return facts == self._facts and _are_same(objects, self._objects)

    def _look(self) -> tuple[list[Any], list[Any]]:
        """Return the objects that may not be replaced, and the facts that may not change.

        It runs before every rollout and every update, however short: `map` does what is done with each of many.
        """
        tensors = self._tensors()
        objects = [self._algorithm.policy, *self._values(), *map(type, self._modules), *tensors]
        for kind, members in self._with_parts.items():
            objects += chain.from_iterable(map(dict.values, map(itemgetter(kind), members)))
        # A replaced method of a module is one more member.
        facts: list[Any] = [*map(len, self._members)]
        for fact in _FACTS_OF_TENSORS:
            facts += map(fact, filter(_is_there, tensors))
        facts += map(has_replaced_methods, self._stood_for)
        for optimizer, _ in self._trained:
            facts.append(reason := why_not_optimizer(optimizer, self._optimizers))
            objects += optimizer.param_groups[0]["params"] if reason is None else ()
        return objects, facts

    def _values(self) -> list[Any]:
        return [getattr(owner, name) for owner, names in self._settings for name in names]

    def _tensors(self) -> list[Any]:
        return [tensor for layer in self.layers for tensor in layer._parameters.values()] + self._others


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LEAVES = (nn.Linear, nn.Flatten, *ACTIVATIONS)  # modules that compute without others
# Where the numbers of a parameter are in memory, and whether it is trained.
_FACTS_OF_TENSORS: tuple[Any, ...] = (
    th.Tensor.data_ptr,
    th.Tensor.numel,
    th.Tensor.is_contiguous,
    attrgetter("requires_grad"),
)
_is_there = partial(is_not, None)  # there may be no bias


def first_reason(reasons: Mapping[str, Any]) -> str | None:
    """Return the first reason that applies, from a mapping of reasons to whether they do; None if none does."""
    return next((reason for reason, applies in reasons.items() if applies), None)


def _are_same(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two sequences have the same objects in the same order."""
    return len(ones) == len(others) and all(map(is_, ones, others))


# --- Calls -----------------------------------------------------------------------------------------------------------


def _any_hook(of_modules: Iterable[Mapping[int, Any]]) -> bool:
    """Whether modules have hooks, or PyTorch has hooks of all modules."""
    return any(of_modules) or bool(torch_module._has_any_global_hook())  # type: ignore[no-untyped-call]


def has_replaced_methods(owner: Any) -> bool:
    """Whether an attribute of an object hides a method of its class."""
    return hasattr(owner, "__dict__") and not _methods(type(owner)).isdisjoint(vars(owner))  # type: ignore[arg-type]


@cache
def _methods(owner: Any) -> frozenset[str]:
    kinds = FunctionType, staticmethod, classmethod
    return frozenset(name for base in owner.__mro__ for name, member in vars(base).items() if isinstance(member, kinds))


# Classes whose methods the kernels replace, and functions that these libraries put around methods, such as `no_grad`.
_LIBRARIES = ("stable_baselines3", "sb3_contrib", "torch")
_AROUND = tuple(
    str(Path(str(module.__file__)).parent / name) for module, name in ((th, ""), (typing_extensions, "typ"))
)


# What makes an object computes nothing afterwards. PyTorch itself replaces these when it exports or compiles something.
_MAKING = ("__init__", "__setstate__")


def replaced_method(kind: type) -> str | None:
    """Return the first method of a library's class that was replaced from outside its module; None: there is none.

    Inherited methods are not checked.
    """
    members = ((name, member) for name, member in vars(kind).items() if name not in _MAKING)
    return next((f"{kind.__name__}.{name}" for name, member in members if not _is_own(member, kind)), None)


def _is_own(member: Any, kind: type) -> bool:
    """Whether a class's module defines this member of the class; data are not asked."""
    if isinstance(member, property):
        return all(_is_own(each, kind) for each in (member.fget, member.fset, member.fdel))
    function = getattr(member, "__func__", member)
    if not callable(function) or isinstance(function, type) or hasattr(function, "__origin__"):  # types
        return True
    while hasattr(function, "__wrapped__") and _file_of(function).startswith(_AROUND):
        function = function.__wrapped__
    is_defined = _file_of(function) == getattr(sys.modules.get(kind.__module__), "__file__", None)
    return is_defined and function.__code__.co_qualname.rpartition(".")[0] in ("", kind.__qualname__)


def _file_of(function: Any) -> str:
    return function.__code__.co_filename if isinstance(function, FunctionType) else ""


# --- Layers and parameters -------------------------------------------------------------------------------------------


def why_not_nets(
    nets: Iterable[nn.Module], activation: type[nn.Module], last: Sequence[type[nn.Module]] = (nn.Linear,)
) -> str | None:
    """Return the reason why the kernels do not cover these nets; None if they are plain MLPs.

    Args:
        activation: after each hidden layer.
        last: the types of the modules that follow the hidden layers.
    """
    for net in nets:
        kinds = [type(layer) for layer in (net if type(net) is nn.Sequential else [net])]
        hidden = len(kinds) - len(last)
        if kinds != [nn.Linear, activation] * (hidden // 2) + list(last):
            return "layers other than linear ones and activations"
    return None


def _why_not_layers(layers: Iterable[nn.Linear]) -> str | None:
    for layer in layers:
        parameters = layer._parameters
        if list(parameters) != ["weight", "bias"] or parameters["bias"] is None or parameters["weight"] is None:
            return "a layer without bias"
        shapes = [tuple(parameter.shape) for parameter in parameters.values() if parameter is not None]
        if shapes != [(layer.out_features, layer.in_features), (layer.out_features,)]:
            return "a layer whose parameters have another shape"
    return None


def _why_not_tensors(tensors: Sequence[th.Tensor]) -> str | None:
    for tensor in tensors:
        is_known = type(tensor) in (nn.Parameter, th.Tensor) and tensor.dtype == th.float32
        if not tensor.requires_grad:
            return "frozen parameters"
        if not (is_known and tensor.device.type == "cpu" and tensor.is_contiguous()):
            return "non-float32 or transposed parameters, or those of another device"
    if any(map(_is_frozen_or_hooked, tensors)):
        return "hooks of parameters"
    places = sorted((tensor.data_ptr(), tensor.data_ptr() + 4 * tensor.numel()) for tensor in tensors)
    overlap = any(end > start for (_, end), (start, _) in pairwise(places))
    return "layers that share parameters" if overlap else None


def _is_frozen_or_hooked(tensor: Any) -> bool:
    """Whether a parameter is frozen, or something other than the optimizer gets its gradient."""
    return not tensor.requires_grad or bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


# --- Optimizers ------------------------------------------------------------------------------------------------------


def why_not_optimizer(
    optimizer: th.optim.Optimizer, kinds: Sequence[type[th.optim.Optimizer]] = (th.optim.Adam,)
) -> str | None:
    """Return why the kernels of these kinds do not cover an optimizer; None if they do."""
    if type(optimizer) not in kinds:
        return f"optimizer {type(optimizer).__name__}"
    settings = optimizer.param_groups[0]
    return first_reason(
        {
            "several parameter groups": len(optimizer.param_groups) != 1,
            "momentum": settings.get("momentum") or settings.get("centered"),
            "weight decay": settings.get("weight_decay") != 0,
            "amsgrad or maximize": settings.get("amsgrad") or settings.get("maximize"),
            "hooks of the optimizer": optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks,
        }
    )


# --- Policies --------------------------------------------------------------------------------------------------------

_OF_POLICIES = ("activation_fn", "observation_space", "action_space", "normalize_images")  # decisive attributes


def _why_not_common(algorithm: Any, extractors: Sequence[nn.Module]) -> str | None:
    """Return the reason why the kernels do not cover what policies of all algorithms have; None if they do."""
    policy = algorithm.policy
    space, activation = policy.observation_space, policy.activation_fn
    foreign = [type(each).__name__ for each in extractors if type(each) is not FlattenExtractor]
    reason = first_reason(
        {
            f"device {algorithm.device}": algorithm.device.type != "cpu",
            "gSDE": trait(algorithm, "use_sde"),
            f"features extractor {''.join(foreign[:1])}": foreign,
            f"activation {getattr(activation, '__name__', repr(activation))}": activation not in ACTIVATIONS,
        }
    )
    # The policy has to turn its observations into one vector of floats, or of zeros and ones.
    if isinstance(space, spaces.Box):
        is_covered = not (policy.normalize_images and is_image_space(space))
    else:
        is_covered = isinstance(space, spaces.MultiBinary) or _is_counted_from_zero(space)
    return reason if reason or is_covered else f"observation space {space}"  # whose text takes long


def _is_counted_from_zero(space: spaces.Space[Any]) -> bool:
    if isinstance(space, spaces.MultiDiscrete):
        return len(space.nvec.shape) == 1 and not space.start.any()
    return isinstance(space, spaces.Discrete) and space.start == 0


# --- Actors and critics of PPO, A2C, TRPO and variants ---------------------------------------------------------------

# By their places, see `place_of`: sb3-contrib is imported only by those who use it. Policies with their distributions.
_SB3, _MASKABLE = "stable_baselines3.common.distributions", "sb3_contrib.common.maskable.distributions"
_OF_SB3 = tuple(f"{_SB3}:{kind}Distribution" for kind in ("DiagGaussian", "Categorical", "MultiCategorical"))
_OF_MASKABLE = tuple(f"{_MASKABLE}:Maskable{kind}Distribution" for kind in ("Categorical", "MultiCategorical"))
_POLICIES = {
    "stable_baselines3.common.policies:ActorCriticPolicy": _OF_SB3,
    "sb3_contrib.common.maskable.policies:MaskableActorCriticPolicy": _OF_MASKABLE,
    "sb3_contrib.common.recurrent.policies:RecurrentActorCriticPolicy": _OF_SB3,
    "marl_sb3.extensions.fast.masked_on_policy:MaskableMemoryPolicy": _OF_SB3,
}
_BUFFERS = (
    "stable_baselines3.common.buffers:RolloutBuffer",
    "marl_sb3.core.on_policy.rollout:MaskedRolloutBuffer",
    "sb3_contrib.common.maskable.buffers:MaskableRolloutBuffer",
    "marl_sb3.core.on_policy.sequences:ActionMaskRolloutBuffer",
)


def lstms_of(policy: Any) -> list[Any]:
    """Return the LSTM of the actor, and the critic's own one if there is one; none of a policy without memory."""
    found = (getattr(policy, name, None) for name in ("lstm_actor", "lstm_critic"))
    return [lstm for lstm in found if lstm is not None]


def actor_critic_coverage(algorithm: Any, *, trains: bool = True) -> PathStillValid | str:
    """Return the checks for acting by kernels for this PPO, A2C, TRPO or variant, or why that is impossible.

    Args:
        trains: whether they train it, too.
    """
    reason = _why_not_actor_critic(algorithm)
    if reason is not None:
        return reason
    policy, buffer = algorithm.policy, type(algorithm.rollout_buffer)
    lstms, critic = lstms_of(policy), getattr(policy, "critic", None)  # the latter in the place of a critic's LSTM
    reason = first_reason(
        {
            "lstm_kwargs": lstms and set(policy.lstm_kwargs) - {"dropout"},
            "LSTMs of another kind": not all(
                type(each) is nn.LSTM and each.bias and not (each.proj_size or each.bidirectional) for each in lstms
            ),
            "a critic of another kind": critic is not None and type(critic) is not nn.Linear,
            "imitation_data": trains and algorithm.has_more_losses,
            f"rollout buffer {buffer.__name__}": trains and not lstms and place_of(buffer) not in _BUFFERS,
            "dropout": trains and any(each.dropout and each.num_layers > 1 for each in lstms),
        }
    )
    if reason is not None:
        return reason
    nets = policy.mlp_extractor
    modules = [*nets.policy_net, policy.action_net, *nets.value_net, policy.value_net, *shared_layers(policy), critic]
    log_std = [policy.log_std] if isinstance(policy.action_space, spaces.Box) else []
    return PathStillValid(
        algorithm,
        [module for module in modules if isinstance(module, nn.Linear)],
        others=[*log_std, *(weight for each in lstms for weight in each.parameters())],
        trained=[(policy.optimizer, policy.parameters())] if trains else (),
        optimizers=[*OPTIMIZERS],
        settings=[
            (algorithm, ["device", "use_sde", "action_space", "rollout_buffer"]),
            (policy, [*_OF_POLICIES, "optimizer", "action_dist"]),
        ],
    )


def _why_not_actor_critic(algorithm: Any) -> str | None:
    policy = algorithm.policy
    if (place := place_of(type(policy))) not in _POLICIES:
        return f"policy class {type(policy).__name__}"
    extractors = [policy.features_extractor, policy.pi_features_extractor, policy.vf_features_extractor]
    network, activation = policy.mlp_extractor, policy.activation_fn
    shares = type(policy.features_extractor) is MlpFeatures and not lstms_of(policy)
    reason = _why_not_shared(extractors) if shares else None
    reason = reason or _why_not_common(algorithm, [] if shares else extractors)
    if reason is None and type(network) is not MlpExtractor:
        reason = "layers other than linear ones and activations"
    reason = (
        reason
        or why_not_nets([network.policy_net, network.value_net], activation, last=())
        or why_not_nets([policy.action_net, policy.value_net], activation)
    )
    if reason is not None:
        return reason
    if not (isinstance(policy.action_space, spaces.Box) or _is_counted_from_zero(policy.action_space)):
        return f"action space {policy.action_space}"
    distribution = type(policy.action_dist)
    return None if place_of(distribution) in _POLICIES[place] else f"distribution {distribution.__name__}"


def shared_layers(policy: Any) -> nn.Sequential:
    """Return the modules that the features extractor `mlp` has before actor and critic; empty for another extractor."""
    extractor = policy.features_extractor
    return extractor.layers if type(extractor) is MlpFeatures else nn.Sequential()


def _why_not_shared(extractors: Sequence[Any]) -> str | None:
    layers = extractors[0].layers
    activation = type(layers[-1])
    return first_reason(
        {
            "features extractors that are not shared": any(each is not extractors[0] for each in extractors),
            f"activation {activation.__name__}": activation not in ACTIVATIONS,
        }
    ) or why_not_nets([layers], activation, last=())


# --- Networks of algorithms with a replay buffer ---------------------------------------------------------------------


def why_not_policy(algorithm: Any, policy_class: type[BasePolicy], networks: Sequence[str]) -> str | None:
    """Return why the kernels do not cover a policy and its networks; None if they do.

    Args:
        policy_class: the class that is covered; its subclasses may compute something else.
        networks: the names of all networks that the kernels run, in the algorithm and in the policy.
    """
    policy = algorithm.policy
    if type(policy) is not policy_class:
        return f"policy class {type(policy).__name__}"
    used = [getattr(algorithm, name) for name in networks]
    libraries = "stable_baselines3", "sb3_contrib"
    foreign = next((type(each) for each in used if type(each).__module__.partition(".")[0] not in libraries), None)
    if foreign is not None:
        return f"network class {foreign.__name__}"
    if any(getattr(policy, name) is not network for name, network in zip(networks, used, strict=True)):
        return "a policy that acts by another network"
    return _why_not_common(algorithm, [network.features_extractor for network in used])


def valid_for_replay(
    algorithm: Any,
    trained: Sequence[tuple[Any, Sequence[nn.Module]]],
    targets: Sequence[nn.Module],
    settings: Sequence[tuple[Any, Sequence[str]]] = (),
    others: Sequence[tuple[th.optim.Optimizer, th.Tensor]] = (),
) -> PathStillValid:
    """Return the checks for an algorithm whose networks are plain MLPs.

    Args:
        trained: each owner of an `optimizer` with the nets that this trains, in order.
        targets: the nets that no optimizer trains.
        settings: see `PathStillValid`; besides the networks, the optimizers and those that all algorithms have.
        others: more optimizers, each with the one tensor that it trains.
    """
    held = [(owner.optimizer, parameters_of(_layers(nets))) for owner, nets in trained]
    held += [(optimizer, [tensor]) for optimizer, tensor in others]
    own = ["device", "use_sde", *algorithm.network_names]
    decisive = [(algorithm, own), (algorithm.policy, _OF_POLICIES), *settings]
    return PathStillValid(
        algorithm,
        _layers([net for _, nets in trained for net in nets] + [*targets]),
        others=[tensor for _, tensor in others],
        trained=held,
        settings=[*decisive, *((owner, ["optimizer"]) for owner, _ in trained)],
    )


def _layers(nets: Iterable[nn.Module]) -> list[nn.Linear]:
    return [layer for net in nets for layer in linears(net)]
