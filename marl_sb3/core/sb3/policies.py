"""Policies of SB3 with more arguments: their signatures, their kin for other observations, and memory."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch as th
from stable_baselines3.common.policies import BasePolicy
from torch import nn
from typing_extensions import override

from marl_sb3.core.config.algorithms import parameters_of

_Class = TypeVar("_Class", bound=type[Any])


def with_arguments_of_bases(*without: str) -> Callable[[_Class], _Class]:
    """Let the signature of a class name the arguments of its base classes too: unknown ones are refused by it.

    Args:
        without: arguments of base classes that it does not have.
    """

    def named(cls: _Class) -> _Class:
        def __init__(self: Any, *arguments: Any, **settings: Any) -> None:  # noqa: N807
            super(cls, self).__init__(*arguments, **settings)  # type: ignore[arg-type]

        known = parameters_of.__wrapped__(cls)  # not those that are kept: they become others
        parameters = [
            each for name, each in known.items() if each.kind is not each.VAR_POSITIONAL and name not in without
        ]
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        cls.__init__ = vars(cls).get("__init__", __init__)
        cls.__init__.__signature__ = inspect.Signature([own, *parameters])
        return cls

    return named


def with_kin(policy: type[Any], prefix: str, stock: Mapping[str, type[BasePolicy]]) -> dict[str, type[Any]]:
    """Return a policy, and its kin for images and `Dict` observations, by the names that SB3 has for its own.

    The kin become classes of the module of the policy: SB3 pickles policies by the names of their classes.

    Args:
        policy: is derived from SB3's policy of vectors. If it has that one as `plain`, so have they.
        prefix: of the names of the kin.
        stock: SB3's policies, by their names.
    """
    made: dict[str, type[Any]] = {}
    for name, plain in stock.items():
        made[name] = policy
        if not issubclass(policy, plain):
            members = {"plain": plain} if "plain" in vars(policy) else {}
            members |= {"__doc__": policy.__doc__, "__module__": policy.__module__}  # type: ignore[dict-item]
            made[name] = type(prefix + name.replace("Lstm", ""), (policy, plain), members)
            setattr(sys.modules[policy.__module__], made[name].__name__, made[name])
    return made


class GRU(nn.GRU):
    """A GRU (Cho et al. 2014) that is called as an LSTM is: it has no cell state, and returns the one it is given.

    All that keeps the states of LSTMs keeps those of a GRU in this way: rollouts, checkpoints, `predict`, ONNX graphs.
    A cell state begins as zeros, and so it stays.
    """

    @override
    def forward(self, inputs: Any, states: tuple[th.Tensor, th.Tensor]) -> Any:  # type: ignore[override]
        """Run over sequences.

        Args:
            inputs: (steps, rows, size), or packed sequences.
            states: hidden and cell state, (layers, rows, hidden size) each.

        Returns:
            The outputs of the last layer, (steps, rows, hidden size), and the states after the last step.
        """
        hidden, cell = states
        outputs, hidden = super().forward(inputs, hidden)
        return outputs, (hidden, cell)


CELLS: Mapping[str, type[nn.LSTM] | type[GRU]] = {"lstm": nn.LSTM, "gru": GRU}  # by the values of `policy_kwargs.cell`


def take_single_steps(policy: Any) -> None:
    """Let a recurrent policy of sb3-contrib take single steps alone, without looking at the starts, as graphs need it.

    Its `_process_sequence` has another way for steps in which no episode starts.
    """

    def single_step(features: th.Tensor, states: Any, starts: th.Tensor, lstm: nn.LSTM) -> tuple[th.Tensor, Any]:
        kept = tuple(state.masked_fill(starts[None, :, None], 0.0) for state in states)
        hidden, after = lstm(features[None], kept)
        return hidden[0], after

    policy._process_sequence = single_step
