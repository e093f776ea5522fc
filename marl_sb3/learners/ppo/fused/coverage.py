"""Which policies the fused kernels can train; PyTorch trains the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from torch import nn

from marl_sb3.config.algorithms import place_of
from marl_sb3.learners.coverage import (
    ACTIVATIONS,
    Reliance,
    covers_observations,
    first_reason,
    is_plain_mlp,
    name_of,
)
from marl_sb3.learners.optimizer_kinds import OPTIMIZERS

# By their places, see `place_of`: sb3-contrib is imported only by those who use it. Policies with their distributions.
_SB3, _MASKABLE = "stable_baselines3.common.distributions", "sb3_contrib.common.maskable.distributions"
_OF_SB3 = tuple(f"{_SB3}:{kind}Distribution" for kind in ("DiagGaussian", "Categorical", "MultiCategorical"))
_OF_MASKABLE = tuple(f"{_MASKABLE}:Maskable{kind}Distribution" for kind in ("Categorical", "MultiCategorical"))
_POLICIES = {
    "stable_baselines3.common.policies:ActorCriticPolicy": _OF_SB3,
    "sb3_contrib.common.maskable.policies:MaskableActorCriticPolicy": _OF_MASKABLE,
}
_RECURRENT_POLICIES = {"sb3_contrib.common.recurrent.policies:RecurrentActorCriticPolicy": _OF_SB3}
_BUFFERS = (
    "stable_baselines3.common.buffers:RolloutBuffer",
    "marl_sb3.experience.rollout:MaskedRolloutBuffer",
    "sb3_contrib.common.maskable.buffers:MaskableRolloutBuffer",
    "marl_sb3.experience.sequences:ActionMaskRolloutBuffer",
)
_OF_POLICY = ("optimizer", "activation_fn", "action_dist", "observation_space", "action_space", "normalize_images")
_OF_ALGORITHM = ("device", "use_sde", "action_space")


def coverage(algorithm: Any) -> Reliance | str:
    """Return what the kernels rely on to train this PPO, A2C or MaskablePPO, or the reason why they cannot."""
    reason = _why_not(algorithm) or _why_not_settings(algorithm)
    if reason is not None:
        return reason
    policy = algorithm.policy
    settings = [name for name in ("rollout_buffer", "target_kl", "clip_range_vf") if hasattr(algorithm, name)]
    trained = [(policy.optimizer, policy.parameters())]
    return _reliance(algorithm, settings, trained=trained, optimizers=[*OPTIMIZERS])


def acting_coverage(algorithm: Any) -> Reliance | str:
    """Return what the kernels rely on to act for an algorithm that PyTorch trains, or the reason why they cannot."""
    return _why_not(algorithm) or _reliance(algorithm)


def memory_coverage(algorithm: Any) -> Reliance | str:
    """Return what the kernels rely on to act for this RecurrentPPO in rollouts, or the reason why they cannot."""
    policy = algorithm.policy
    reason = _why_not(algorithm, _RECURRENT_POLICIES)
    if reason is not None:
        return reason
    lstms = [policy.lstm_actor] if policy.shared_lstm else [policy.lstm_actor, policy.lstm_critic]
    reason = first_reason(
        {
            "a critic without LSTM": None in lstms,
            "lstm_kwargs": set(policy.lstm_kwargs) - {"dropout"},
            "LSTMs of another kind": not all(map(_is_plain_lstm, lstms)),
        }
    )
    return reason or _reliance(algorithm, others=[weight for lstm in lstms for weight in lstm.parameters()])


def _is_plain_lstm(lstm: Any) -> bool:
    return type(lstm) is nn.LSTM and lstm.bias and not lstm.proj_size and not lstm.bidirectional


def _reliance(algorithm: Any, settings: Sequence[str] = (), others: Sequence[Any] = (), **training: Any) -> Reliance:
    policy = algorithm.policy
    log_std = [policy.log_std] if isinstance(policy.action_space, spaces.Box) else []
    decisive = [(algorithm, [*_OF_ALGORITHM, *settings]), (policy, _OF_POLICY)]
    return Reliance(algorithm, linears_of(policy), others=[*log_std, *others], settings=decisive, **training)


def linears_of(policy: ActorCriticPolicy) -> list[nn.Linear]:
    """Return the linear layers of actor and critic, in the order of the kernels."""
    extractor = policy.mlp_extractor
    modules = [*extractor.policy_net, policy.action_net, *extractor.value_net, policy.value_net]
    return [module for module in modules if isinstance(module, nn.Linear)]


def _why_not(algorithm: Any, policies: Mapping[str, Sequence[str]] = _POLICIES) -> str | None:
    policy = algorithm.policy
    if place_of(type(policy)) not in policies:
        return f"policy class {type(policy).__name__}"
    reason = _why_not_network(policy) or _why_not_spaces(policy) or _why_not_machine(algorithm)
    distribution = type(policy.action_dist)
    if reason is None and place_of(distribution) not in policies[place_of(type(policy))]:
        reason = f"distribution {distribution.__name__}"
    return reason


def _why_not_machine(algorithm: Any) -> str | None:
    return first_reason(
        {f"device {algorithm.device}": algorithm.device.type != "cpu", "gSDE": getattr(algorithm, "use_sde", False)}
    )


def _why_not_settings(algorithm: Any) -> str | None:
    buffer = type(algorithm.rollout_buffer)
    return first_reason(
        {
            "target_kl": getattr(algorithm, "target_kl", None) is not None,
            "clip_range_vf": getattr(algorithm, "clip_range_vf", None) is not None,
            f"rollout buffer {buffer.__name__}": place_of(buffer) not in _BUFFERS,
        }
    )


def _why_not_network(policy: ActorCriticPolicy) -> str | None:
    extractors = (policy.features_extractor, policy.pi_features_extractor, policy.vf_features_extractor)
    network = policy.mlp_extractor
    return first_reason(
        {
            f"features extractor {type(extractors[0]).__name__}": any(
                type(e) is not FlattenExtractor for e in extractors
            ),
            f"activation {name_of(policy.activation_fn)}": policy.activation_fn not in ACTIVATIONS,
            "layers other than linear ones and activations": type(network) is not MlpExtractor
            or not is_plain_mlp(network.policy_net, policy.activation_fn)
            or not is_plain_mlp(network.value_net, policy.activation_fn)
            or type(policy.action_net) is not nn.Linear
            or type(policy.value_net) is not nn.Linear,
        }
    )


def _why_not_spaces(policy: BasePolicy) -> str | None:
    if not covers_observations(policy):  # the text of a space takes longer than all these checks
        return f"observation space {policy.observation_space}"
    return None if _covers_actions(policy.action_space) else f"action space {policy.action_space}"


def _covers_actions(space: spaces.Space[Any]) -> bool:
    if isinstance(space, spaces.MultiDiscrete):
        return len(space.nvec.shape) == 1 and not space.start.any()
    return isinstance(space, spaces.Box) or (isinstance(space, spaces.Discrete) and space.start == 0)
