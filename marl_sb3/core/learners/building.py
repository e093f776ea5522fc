"""Make the SB3 algorithm of a policy, after checking that its hyperparameters fit its rollout and spaces."""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.utils import FloatSchedule

from marl_sb3.core.acting.policy import make_action_noise
from marl_sb3.core.config.settings import ProcessingSettings
from marl_sb3.core.config.values import counted
from marl_sb3.core.learners.spec import FITTING, PolicySpec, info_of_class
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.processing.processors import ProcessedPolicy
from marl_sb3.core.sb3.private import integer_sizes
from marl_sb3.core.sb3.schedules import Schedule
from marl_sb3.core.sb3.spaces import SpacesOnlyVecEnv, check_spaces
from marl_sb3.core.sb3.traits import trait
from marl_sb3.doors import imported
from marl_sb3.errors import ConfigError, refuse, require_known
from marl_sb3.wrappers.observations import choices_of

_log = logging.getLogger(__name__)


def build(
    rows: PolicyRows,
    spec: PolicySpec,
    processing: Processing | None,
    device: str,
    seed: int | None = None,
    buffer: type[BaseBuffer] | None = None,
) -> BaseAlgorithm:
    """Make the SB3 algorithm of a policy; it gets no replay buffer.

    Args:
        processing: that of the policy, about which a features extractor may ask; None: there is none.
        device: one of SB3's names, but `auto` takes CUDA only for networks that are faster there, see `_suits_gpu`.
        seed: for the initial weights and all random draws of the algorithm; None: they are not seeded.
        buffer: class of its rollout buffer; None for an algorithm that only acts, or that has a replay buffer.

    Raises:
        ConfigError: SB3 refuses the spaces or hyperparameters; some it takes, and fails on later.
    """
    network = spec.hyperparameters.get("policy_kwargs")
    if spec.is_auto and (found := imported(FITTING)(spec.algorithm, rows.group.observation_space, network)):
        spec = spec.with_policy(*found)  # the spec of a caller; `set_up` has chosen the policies of a training
    settings = {**spec.hyperparameters, "rollout_buffer_class": buffer or _NoBuffer}
    if is_off_policy(spec.algorithm):
        del settings["rollout_buffer_class"]
        settings["replay_buffer_class"] = _NoBuffer
        if settings.get("action_noise") is not None:
            settings["action_noise"] = make_action_noise(settings["action_noise"], rows.zero_based_actions.space)
        if isinstance(settings.get("train_freq"), list):
            settings["train_freq"] = tuple(settings["train_freq"])
    settings |= {name: float(schedule(1.0)) for name, schedule in coefficients(settings.get("ent_coef")).items()}
    epsilon = settings.pop("exploration_schedule", None)
    kwargs = settings["policy_kwargs"] = dict(settings.get("policy_kwargs") or {})  # SB3 writes into it
    policy_class = spec.policy_class
    if isinstance(seen := rows.group.observation_space, spaces.Dict) and str(spec.policy).startswith(("Mlp", "Cnn")):
        words = f"agents {', '.join(rows.agents)} observe several parts ({', '.join(seen.spaces)}), but {spec.policy}"
        accepted = "takes one array; accepted: policy=MultiInputPolicy, or auto"
        raise ConfigError(f"policy {rows.policy_id!r}: {words} {accepted}", key="policy")
    _check_policy_kwargs(rows, policy_class, kwargs)
    if not spec.has_own_network:
        _check_net_arch(rows, spec.algorithm, kwargs.get("net_arch"))
    ask = getattr(kwargs.get("features_extractor_class"), "arguments_for", None)
    if processing is not None and ask is not None:  # the extractor's arguments depend on how observations are processed
        kwargs["features_extractor_kwargs"] = {**(kwargs.get("features_extractor_kwargs") or {}), **ask(processing)}
    # The space that agents observe is copied: networks for images draw from it, and others from that of the env.
    observed = deepcopy(rows.zero_based_observations.space)
    env = SpacesOnlyVecEnv(rows.num_rows, observed, rows.zero_based_actions.space)
    arguments = {"policy": policy_class, "env": env, "seed": seed, **settings}
    with warnings.catch_warnings():
        # `check_rollout` gives the same warning in one line.
        warnings.filterwarnings("ignore", message="You have specified a mini-batch size")
        warnings.filterwarnings("ignore", message=r"`n_steps=\d+` is ignored because a custom")  # not by our buffers
        try:
            has_rollouts_of_states = spec.info.has_memory and not is_off_policy(spec.algorithm)
            make: Any = functools.partial(_recurrent, spec) if has_rollouts_of_states else spec.algorithm
            made = make(**arguments, device="cpu" if device == "auto" else device)
            if device == "auto" and th.cuda.is_available() and _suits_gpu(made.policy):
                made = make(**arguments, device="cuda")
        except ConfigError as error:  # one of our features extractors raises it
            raise ConfigError(f"policy {rows.policy_id!r}: {error}", key=error.key) from error
        except (AssertionError, AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            words = (
                "".join(map(str, *error.args)) if isinstance((*error.args, "")[0], tuple) else str(error)
            )  # in parts
            if str(spec.policy).startswith(("Cnn", "MultiInput")):
                words += f"; the agents observe {rows.group.observation_space}; accepted for it: policy=auto"
            raise ConfigError(f"policy {rows.policy_id!r}: {spec.algorithm.__name__} raised: {words}") from error
    if epsilon is not None:
        made.exploration_schedule = FloatSchedule(epsilon)  # instead of SB3's line
    made.observation_space.seed(seed)  # equal trainings have equal states; SB3 seeds the space of actions alone
    return made  # type: ignore[no-any-return]


def coefficients(ent_coef: Any) -> dict[str, Schedule]:
    """Return the schedules of hyperparameters that SB3 takes as numbers only, by name; see `Learner.schedules`."""
    return {"ent_coef": ent_coef} if callable(ent_coef) else {}


def build_for_acting(rows: PolicyRows, spec: PolicySpec, processing: Processing | None, device: str) -> BaseAlgorithm:
    """Make the SB3 algorithm of a policy that acts but does not learn: it gets no buffer.

    Raises:
        ConfigError: the hyperparameters do not fit the spaces.
    """
    check_spaces(rows, spec.algorithm)
    if is_off_policy(spec.algorithm):
        check_action_space(rows, spec)
    return build(rows, spec, processing, device)


def check_action_space(rows: PolicyRows, spec: PolicySpec) -> None:
    """Refuse actions that the algorithm does not choose.

    Raises:
        ConfigError: names the policy, the space, and what is accepted.
    """
    discrete = any(cls.__name__ in ("DQN", "QRDQN") for cls in spec.algorithm.__mro__)
    accepted = trait(spec.algorithm, "accepted_actions") or (spaces.Discrete if discrete else spaces.Box,)
    action_space, agents = rows.group.action_space, ", ".join(map(str, rows.agents))
    if not isinstance(action_space, accepted):
        raise ConfigError(
            f"policy {rows.policy_id!r}, agents {agents}: the action space is {action_space}; "
            f"accepted by {spec.algorithm.__name__}: {', '.join(each.__name__ for each in accepted)}",
            key="algo",
        )


def is_off_policy(algorithm: type[BaseAlgorithm]) -> bool:
    """Whether an algorithm learns from a replay buffer; what it needs for that is imported when it is asked for."""
    return issubclass(algorithm, OffPolicyAlgorithm)


class _NoBuffer:
    """The buffer of an algorithm that only acts, or that gets its own afterwards."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Allocate no memory."""


def _suits_gpu(policy: th.nn.Module) -> bool:
    """Whether it has convolutions, or layers from and to 512 units or more: smaller networks are faster on CPUs."""
    return any(part.dim() > 2 or (part.dim() == 2 and min(part.shape) >= 512) for part in policy.parameters())


def _recurrent(spec: PolicySpec, **arguments: Any) -> BaseAlgorithm:
    """Make a RecurrentPPO, which takes no class of buffers: its own gets one step, and is replaced."""
    buffer = arguments.pop("rollout_buffer_class")
    with integer_sizes():
        made: Any = spec.algorithm(**{**arguments, "n_steps": 1})
    made.n_steps = n_steps = spec.values["n_steps"]
    lstm = made.policy.lstm_actor
    states = (n_steps, made.n_envs, lstm.num_layers, lstm.hidden_size)
    settings = {"gamma": made.gamma, "gae_lambda": made.gae_lambda, "n_envs": made.n_envs}
    made.rollout_buffer = buffer(n_steps, made.observation_space, made.action_space, states, made.device, **settings)
    return made  # type: ignore[no-any-return]


_OF_SB3 = ("self", "observation_space", "action_space", "lr_schedule", "use_sde")  # SB3 passes these itself


def _check_policy_kwargs(rows: PolicyRows, policy_class: type[Any], given: Mapping[str, Any]) -> None:
    """Refuse arguments that the policy class does not take, with a clearer message than SB3's."""
    parameters = inspect.signature(policy_class.__init__).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = [name for name in parameters if name not in _OF_SB3]
    for name in given:
        what = f"policy {rows.policy_id!r}: unknown policy_kwargs {name!r} of {policy_class.__name__}"
        require_known(name, known, what, f"policy_kwargs.{name}")


def _check_net_arch(rows: PolicyRows, algorithm: type[BaseAlgorithm], net_arch: Any) -> None:
    """Refuse layers of networks that the algorithm does not have: SB3 would ignore them, or fail on them."""
    if not isinstance(net_arch, Mapping):
        return
    kinds = info_of_class(algorithm).kinds
    names = [] if "exploration_fraction" in kinds else ["pi", "qf"] if "buffer_size" in kinds else ["pi", "vf"]
    if not set(net_arch) <= set(names) or (names == ["pi", "qf"] and len(net_arch) < len(names)):
        shape = f"{{{', '.join(f'{name}: [64, 64]' for name in names)}}}"
        refuse(
            f"policy {rows.policy_id!r}: policy_kwargs.net_arch of {algorithm.__name__}",
            net_arch,
            f"a list of layer widths{f', or {shape}' if names else ''}",
            "policy_kwargs.net_arch",
        )


def check_rollout(rows: PolicyRows, algorithm: type[BaseAlgorithm], n_steps: int, batch_size: int | None) -> None:
    """Refuse spaces that SB3 cannot learn in, and hyperparameters that do not fit the rollout.

    As in SB3, a `batch_size` larger than the rollout makes one minibatch of the whole rollout.

    Args:
        n_steps: steps of each env in a rollout.
        batch_size: agent steps in a minibatch; None: all of the rollout.

    Raises:
        ConfigError: names the policy, and what is accepted.
    """
    check_spaces(rows, algorithm)
    if info_of_class(algorithm).takes_masks and choices_of(rows.group.action_space) is None:
        raise ConfigError(
            f"policy {rows.policy_id!r}, agents {', '.join(rows.agents)}: the action space is "
            f"{rows.group.action_space}, which has no masks; {algorithm.__name__} accepts Discrete, MultiDiscrete "
            "and MultiBinary",
            key="algo",
        )
    size = n_steps * rows.num_rows
    factors = (counted(n_steps, "step"), counted(rows.num_envs, "env"), counted(len(rows.agents), "agent"))
    shape = f"{' x '.join(factors)} = {counted(size, 'agent step')}"
    if size < 2:
        raise ConfigError(f"policy {rows.policy_id!r}: a rollout of {shape}; at least 2 are needed", key="n_steps")
    if batch_size is None:
        return
    if batch_size > size:
        _warn_once(
            f"policy {rows.policy_id!r}: batch_size is {batch_size}, larger than its rollout of {shape}: every epoch "
            f"is one minibatch of {size}"
        )
    elif size % batch_size:
        _log.info(
            "policy %s: batch_size %d does not divide its rollout of %d: the last minibatch of an epoch has %d",
            rows.policy_id, batch_size, size, size % batch_size,
        )  # fmt: skip


@functools.cache
def _warn_once(message: str) -> None:
    """Log a warning once per process: a search builds the same policies many times."""
    _log.warning("%s", message)


def processing_of(rows: PolicyRows, settings: ProcessingSettings) -> Processing:
    """The processing of a policy.

    Raises:
        ConfigError: a setting does not fit the spaces.
    """
    policy = ProcessedPolicy(rows.policy_id, rows.agents, rows.zero_based_actions.space)
    return Processing(settings, policy, rows.zero_based_observations.space)


def policy_rows(rows: PolicyRows, processing: Processing) -> PolicyRows:
    """The rows in the spaces in which the policy observes and acts."""
    group = replace(rows.group, observation_space=processing.observation_space, action_space=processing.action_space)
    return replace(rows, group=group)


def stored_space(processing: Processing, algorithm: BaseAlgorithm) -> spaces.Space[Any]:
    """Return the space of the observations that a replay buffer keeps: as the policy sees them, but not normalised."""
    space = algorithm.observation_space if processing.normalizer is None else processing.normalizer.before
    assert space is not None
    return space
