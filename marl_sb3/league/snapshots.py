"""Snapshots of a policy that act in one batch, each row by the weights of the member that plays it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from torch import nn
from typing_extensions import override

from marl_sb3.core.acting.policy import Decision, Policy, PolicyInputs
from marl_sb3.core.sb3.inference import initial_states, takes_masks
from marl_sb3.league.pool import Member
from marl_sb3.types import Array

_ACTIVATIONS = (nn.Tanh, nn.ReLU)


def acts_in_batch(algorithm: Any) -> bool:
    """Whether snapshots of a policy act in one batch: a network of layers without memory that gives a distribution."""
    policy = algorithm.policy
    is_actor = hasattr(policy, "action_net") and hasattr(policy, "mlp_extractor") and hasattr(policy, "action_dist")
    if not is_actor or initial_states(algorithm, 1) or getattr(policy, "use_sde", False):
        return False
    return (
        type(policy.mlp_extractor) is MlpExtractor
        and type(policy.pi_features_extractor) is FlattenExtractor
        and all(isinstance(layer, (nn.Linear, *_ACTIVATIONS)) for layer in policy.mlp_extractor.policy_net)
        and not getattr(policy, "squash_output", False)
        and (isinstance(policy, ActorCriticPolicy) or takes_masks(algorithm))
    )


class SnapshotBatch(Policy):
    """Acts for rows that are played by several snapshots of one policy; it samples the actions.

    Args:
        algorithm: of the policy, for spaces and shapes; `acts_in_batch` holds for it.

    Attributes:
        playing: (rows,) index of the snapshot that plays each row of the actor.
    """

    playing: Array

    def __init__(self, algorithm: Any) -> None:
        super().__init__(algorithm)
        self.takes_masks, self.needs_masks = takes_masks(algorithm), False
        self.transposes_images = False
        policy = algorithm.policy
        self._distribution = copy.copy(policy.action_dist)
        hidden = enumerate(policy.mlp_extractor.policy_net)
        self._layers: list[str | type[nn.Module]] = [
            f"policy.mlp_extractor.policy_net.{n}" if isinstance(layer, nn.Linear) else type(layer)
            for n, layer in hidden
        ]
        self._layers.append("policy.action_net")
        self._weights: dict[str, tuple[Array, Array]] = {}
        self._log_std: Array | None = None
        observed = policy.observation_space
        # Of observations that are numbers of categories: how many there are of each.
        self._categories: Array | None = None
        if isinstance(observed, (spaces.Discrete, spaces.MultiDiscrete)):
            self._categories = np.reshape(observed.n if isinstance(observed, spaces.Discrete) else observed.nvec, -1)

    def set_members(self, members: Sequence[Member]) -> None:
        """Take over the weights of these snapshots; `playing` has indices among them."""
        of_members: list[Mapping[str, Array]] = [member.weights or {} for member in members]
        for name in self._layers:
            if isinstance(name, str):
                weight = np.stack([own[f"{name}.weight"].T for own in of_members])  # (members, in, out)
                bias = np.stack([own[f"{name}.bias"][None] for own in of_members])
                self._weights[name] = np.ascontiguousarray(weight), bias
        if of_members and "policy.log_std" in of_members[0]:
            self._log_std = np.stack([own["policy.log_std"] for own in of_members])

    @override
    def act(self, inputs: PolicyInputs) -> Decision:
        playing = self.playing if inputs.chosen is None else self.playing[inputs.chosen]
        outputs, space = self._forward(self._features(inputs.observations), playing), self.algorithm.action_space
        if isinstance(space, spaces.Discrete):  # as below, in a fifth of the time; Gumbel's trick
            allowed = outputs if inputs.masks is None else np.where(inputs.masks, outputs, -np.inf)
            uniform = th.rand(outputs.shape).numpy()
            return Decision((allowed - np.log(-np.log(uniform + 1e-20) + 1e-20)).argmax(axis=1).astype(space.dtype))
        parameters = [th.from_numpy(outputs)]
        if self._log_std is not None:
            parameters.append(th.from_numpy(self._log_std[playing]))
        distribution = self._distribution.proba_distribution(*parameters)
        if inputs.masks is not None:
            distribution.apply_masking(inputs.masks)
        actions = distribution.sample().numpy()
        if isinstance(space, spaces.Box):
            actions = np.clip(actions, space.low, space.high)
        return Decision(actions.reshape(-1, *(space.shape or ())).astype(space.dtype))

    def _features(self, observations: Any) -> Array:
        """(rows, numbers): observations as the first layer takes them."""
        policy, space = self.algorithm.policy, self.algorithm.policy.observation_space
        if self._categories is not None:
            first = np.cumsum(self._categories) - self._categories
            one_hot = np.zeros((len(observations), int(self._categories.sum())), np.float32)
            np.put_along_axis(one_hot, observations.reshape(len(observations), -1) + first, 1.0, axis=1)
            return one_hot
        if isinstance(space, spaces.Box) and not is_image_space(space):
            return observations.reshape(len(observations), -1).astype(np.float32)  # type: ignore[no-any-return]
        seen = policy.obs_to_tensor(observations)[0].cpu()
        prepared: Any = preprocess_obs(seen, space, normalize_images=policy.normalize_images)
        return prepared.reshape(len(prepared), -1).numpy()  # type: ignore[no-any-return]

    def _forward(self, features: Array, playing: Array) -> Array:
        """Return the (rows, outputs) of each row by the network of its snapshot."""
        order = np.argsort(playing, kind="stable")
        members, number = playing[order], len(next(iter(self._weights.values()))[0])
        counts = np.bincount(members, minlength=number)
        place = np.arange(len(members)) - (np.cumsum(counts) - counts)[members]
        hidden = np.zeros((number, counts.max(), features.shape[1]), np.float32)  # the rows of each member, padded
        hidden[members, place] = features[order]
        for layer in self._layers:
            if isinstance(layer, str):
                weight, bias = self._weights[layer]
                hidden = np.matmul(hidden, weight) + bias
            else:
                hidden = np.tanh(hidden) if layer is nn.Tanh else np.maximum(hidden, 0.0)
        outputs = np.empty((len(playing), hidden.shape[2]), np.float32)
        outputs[order] = hidden[members, place]
        return outputs
