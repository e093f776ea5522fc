"""Which policies the fused kernels can train; PyTorch trains the others."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from torch import nn

from marl_sb3.learners.algorithms import place_of
from marl_sb3.learners.fused.coverage import (
    ACTIVATIONS,
    are_trained_float32,
    covers_observations,
    first_reason,
    has_hooks,
    is_plain_mlp,
    why_not_optimizer,
)
from marl_sb3.learners.fused.optimizers import OPTIMIZERS

# By their places, see `place_of`: sb3-contrib is imported only by those who use it.
_POLICIES = (
    "stable_baselines3.common.policies:ActorCriticPolicy",
    "sb3_contrib.common.maskable.policies:MaskableActorCriticPolicy",
)
_BUFFERS = (
    "stable_baselines3.common.buffers:RolloutBuffer",
    "marl_sb3.learners.buffers.rollout:MaskedRolloutBuffer",
    "sb3_contrib.common.maskable.buffers:MaskableRolloutBuffer",
    "marl_sb3.learners.buffers.maskable:ActionMaskRolloutBuffer",
)


def why_not_fused(algorithm: Any) -> str | None:
    """Return the reason why the kernels cannot train this PPO, A2C or MaskablePPO, as a string; None if they can.

    Only what is known to be covered is covered: policies with hooks, replaced layers or subclasses use PyTorch.
    """
    return (
        why_not_acting(algorithm)
        or why_not_optimizer(algorithm.policy.optimizer, [*OPTIMIZERS])
        or _why_not_settings(algorithm)
    )


def why_not_acting(algorithm: Any) -> str | None:
    """Return the reason why the kernels cannot act for this algorithm, as a string; None if they can."""
    policy = algorithm.policy
    if place_of(type(policy)) not in _POLICIES:
        return f"policy class {type(policy).__name__}"
    return _why_not_network(policy) or _why_not_spaces(policy) or _why_not_machine(algorithm)


def why_no_fused_memory(algorithm: Any) -> str | None:
    """Return the reason why the kernels cannot act for this RecurrentPPO in rollouts, as a string; None if they can."""
    policy = algorithm.policy
    if place_of(type(policy)) != "sb3_contrib.common.recurrent.policies:RecurrentActorCriticPolicy":
        return f"policy class {type(policy).__name__}"
    return (
        _why_not_machine(algorithm)
        or first_reason(
            {
                "a critic without LSTM": policy.lstm_critic is None and not policy.shared_lstm,
                "lstm_kwargs": set(policy.lstm_kwargs) - {"dropout"},
            }
        )
        or _why_not_network(policy)
        or _why_not_spaces(policy)
    )


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
            f"activation {policy.activation_fn.__name__}": policy.activation_fn not in ACTIVATIONS,
            "layers other than linear ones and activations": type(network) is not MlpExtractor
            or not is_plain_mlp(network.policy_net, policy.activation_fn)
            or not is_plain_mlp(network.value_net, policy.activation_fn)
            or type(policy.action_net) is not nn.Linear
            or type(policy.value_net) is not nn.Linear,
            "hooks of the network": has_hooks(policy),
            "replaced methods of the policy": any(name in vars(policy) for name in ("forward", "evaluate_actions")),
            "frozen or non-float32 parameters": not are_trained_float32(policy),
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
