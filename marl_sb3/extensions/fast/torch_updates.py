"""What is around SB3's `train` where PyTorch computes the updates: minibatches, and less time for images on CPUs.

With `update_path: auto`, SB3's networks for images get minibatches of images whose channels are the last ones in
memory. That is the layout for which oneDNN's kernels are fastest, and the activations and gradients behind the first
convolution follow it. Adam steps in one pass over the memory instead of ten. Both compute the same sums in another
order: results equal SB3's to floating point tolerance. Weights and the optimizer's state stay as SB3 has them, between
updates and in files. Memory that a minibatch frees stays with the process for the next one: glibc would return such
large pieces to the system, which clears each page of them again. Actions are computed as ever, for a batch of a few
images gains nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, NatureCNN
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples

from marl_sb3.core.on_policy.rollout import MaskedDictRolloutBuffer, MaskedRolloutBuffer, flat_samples
from marl_sb3.core.sb3.private import torch_members
from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.extensions.fast.coverage import has_replaced_methods, replaced_method
from marl_sb3.systems import IS_WINDOWS

_KNOWN_BUFFERS = (RolloutBuffer, DictRolloutBuffer, MaskedRolloutBuffer, MaskedDictRolloutBuffer)
_SAMPLED = ("actions", "values", "log_probs", "advantages", "returns")  # in the order of `RolloutBufferSamples`


@contextmanager
def replaced_methods(*replacements: tuple[Any, str, Callable[..., Any]]) -> Iterator[None]:
    """Let functions take the places of methods inside the context: (object, name of its method, function) each."""
    before = [(vars(owner), name, vars(owner).get(name)) for owner, name, _ in replacements]
    for owner, name, function in replacements:
        vars(owner)[name] = function
    try:
        yield
    finally:
        for members, name, former in before:
            if former is None:
                del members[name]
            else:
                members[name] = former


def minibatches(algorithm: Any, rollout: Any) -> Callable[..., Iterable[Any]]:
    """Return the `get` of a full rollout buffer; one that brings the samples in their place once, not in each pass.

    That place is a GPU, or images have their channels last. Minibatches have SB3's order. The `get` of other samples,
    or of a class that is unknown or whose methods are replaced, is left as it is.
    """
    device: th.device = algorithm.device
    moves = device.type != "cpu" or has_faster_images(algorithm)
    is_known = moves and type(rollout) in _KNOWN_BUFFERS and not has_replaced_methods(rollout)
    if not is_known or any(map(replaced_method, _KNOWN_BUFFERS)):
        return rollout.get  # type: ignore[no-any-return]
    for name in ("observations", *_SAMPLED):  # as `get` does
        setattr(rollout, name, flat_samples(rollout, name))
    rollout.generator_ready = True
    to_device: Any = partial(th.as_tensor, device=device)
    seen: Any = map_arrays(to_device, rollout.observations)
    if device.type == "cpu":
        seen = map_arrays(channels_last, seen)  # type: ignore[arg-type]
        rollout.observations = map_arrays(th.Tensor.numpy, seen)  # type: ignore[arg-type]  # the one copy of them
    actions, *numbers = (to_device(getattr(rollout, name)) for name in _SAMPLED)
    columns = [actions.float(), *(column.reshape(-1) for column in numbers)]
    kind: Any = DictRolloutBufferSamples if isinstance(seen, dict) else RolloutBufferSamples

    def get(batch_size: int) -> Iterator[Any]:
        order = th.as_tensor(np.random.permutation(len(actions)), device=device)  # noqa: NPY002 - SB3's stream
        for chosen in order.split(batch_size):  # type: ignore[no-untyped-call]
            if hasattr(rollout, "samples_drawn"):
                rollout.samples_drawn += len(chosen)
            own = map_arrays(lambda tensor, chosen=chosen: tensor[chosen], seen)  # type: ignore[misc]
            yield kind(own, *(column[chosen] for column in columns))

    return get


# --- Images on CPUs --------------------------------------------------------------------------------------------------

_LIBRARIES = ("torch", "stable_baselines3", "sb3_contrib", "marl_sb3")
_EXTRACTORS = (NatureCNN, CombinedExtractor)
_READ_FIRST = (1, 3)  # numbers of channels for which oneDNN has kernels that read images with their channels first
_OTHER_STEPS = ("foreach", "fused", "capturable", "differentiable")  # settings that choose Adam's way to step


def has_faster_images(algorithm: Any) -> bool:
    """Whether PyTorch's updates of this algorithm, which is derived from `TwoPaths`, are those for images on CPUs.

    A user's own modules and hooks may rely on how SB3 lays out images: `Tensor.view` refuses another layout.
    """
    if algorithm.update_path != "auto" or algorithm.device.type != "cpu":
        return False
    modules: list[Any] = list(algorithm.policy.modules())
    extractors = [each for each in modules if isinstance(each, BaseFeaturesExtractor)]
    hooks = [hook for each in modules for hook in (*each._forward_hooks.values(), *each._forward_pre_hooks.values())]
    inside = [part for each in extractors for part in each.modules()]
    return (
        any(type(each) is NatureCNN for each in extractors)
        and all(type(each) in _EXTRACTORS for each in extractors)
        and all(type(each).__module__.partition(".")[0] in _LIBRARIES for each in modules)
        and all(getattr(hook, "__self__", None) is algorithm for hook in hooks)
        and not any(map(has_replaced_methods, inside))
        and not any(map(replaced_method, (*_EXTRACTORS, th.nn.Conv2d)))
    )


def channels_last(images: th.Tensor) -> th.Tensor:
    """Return (rows, channels, height, width) images with their channels last in memory; other tensors as they are."""
    is_there = images.dim() != 4 or images.is_contiguous(memory_format=th.channels_last)
    if is_there or images.shape[1] in _READ_FIRST:
        return images
    return th.stack(images.unbind(1), dim=-1).permute(0, 3, 1, 2)  # half the time of `contiguous`


_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of glibc's `mallopt`: what it maps by itself, what it gives back


@cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed memory, and map only what is larger than 128 MiB by itself.

    Other systems and C libraries are left as they are.
    """
    mallopt = None if IS_WINDOWS else getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 128 << 20)
        mallopt(_TRIM_THRESHOLD, 1 << 30)


@contextmanager
def faster_images(algorithm: Any, memory: Any, draw: str) -> Iterator[None]:
    """Let PyTorch update networks for images faster inside the context, where `has_faster_images` is true.

    Args:
        algorithm: which is to be trained.
        memory: its rollout or replay buffer.
        draw: the name of the method that returns a minibatch, or all of them one after the other.
    """
    if not has_faster_images(algorithm):
        yield
        return
    keep_freed_memory()
    drawn_by = getattr(memory, draw)

    def laid_out(batch: Any) -> Any:
        seen = map_arrays(channels_last, batch.observations)  # type: ignore[arg-type]
        if isinstance(batch, tuple):
            return batch._replace(observations=seen)  # type: ignore[attr-defined]
        batch.observations = seen
        return batch

    def drawn(*arguments: Any, **settings: Any) -> Any:
        found = drawn_by(*arguments, **settings)
        return map(laid_out, found) if isinstance(found, Iterator) else laid_out(found)

    optimizers = [each for each in torch_members(algorithm)[0].values() if type(each) is th.optim.Adam]
    groups = [group for each in optimizers for group in each.param_groups if not any(map(group.get, _OTHER_STEPS))]
    before = [group["fused"] for group in groups]
    try:
        for group in groups:
            group["fused"] = True
        with replaced_methods((memory, draw, drawn)):
            yield
    finally:
        for group, was_fused in zip(groups, before, strict=True):
            group["fused"] = was_fused
