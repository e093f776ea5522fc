"""SB3 zips: what is read of one is its weights, and nothing else; what is written opens without marl_sb3."""

from __future__ import annotations

import io
import pickle
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import data_to_json

from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.learners.sb3.private import pickled_members

_SHOWN = 80  # characters of a name that the file brings along


_OURS = ("rollout_buffer_class",)  # a class of marl_sb3


def write_zip(algorithm: BaseAlgorithm, path: Path) -> None:
    """Save one policy as SB3 does, without our buffer class, so that it opens where marl_sb3 is not installed."""
    algorithm.save(path, exclude=list(_OURS))


def require_zippable(algorithm: BaseAlgorithm) -> None:
    """Find out whether `write_zip` will do: SB3 pickles classes, functions and spaces, and not all can be.

    Raises:
        CheckpointError: with the attribute of the algorithm that cannot be pickled.
    """
    for name, value in pickled_members(algorithm).items():
        if name not in _OURS:
            try:
                data_to_json({name: value})
            except Exception as error:  # whatever the pickling of somebody's object raises
                raise CheckpointError(f"SB3 cannot pickle its {name}: {error}") from error


def sb3_weights(path: str | Path, max_bytes: int, *, trust_pickle: bool) -> dict[str, th.Tensor]:
    """The weights of the policy in an SB3 zip.

    Only its `policy.pth` is read, by PyTorch's restricted unpickler, which calls nothing but what makes tensors; the
    pickles in `data`, which could run anything, are never opened. `trust_pickle` is demanded nevertheless: one
    unpickler is then all that stands between a stranger's file and this process.

    Args:
        path: the zip.
        max_bytes: refuse a `policy.pth` that is larger, before it is read.
        trust_pickle: that the file's maker is trusted.

    Raises:
        ConfigError: without `trust_pickle`; or it is not such a zip.
    """
    if not trust_pickle:
        raise ConfigError(
            f"{path} is an SB3 zip, which holds pickles, and a pickle from a stranger may run any code when it is "
            "read; if you trust its maker, add --trust-pickle (in Python, trust_pickle=True)",
            key="trust_pickle",
        )
    with _errors_of(path):
        with zipfile.ZipFile(path) as archive, archive.open(_policy_member(archive, max_bytes)) as member:
            data = member.read(max_bytes)
        _check_inner_zip(data)
        weights = th.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
            raise ConfigError("policy.pth does not hold tensors by name")
        return dict(weights)


@contextmanager
def _errors_of(path: str | Path) -> Iterator[None]:
    """What the readers of zips and of PyTorch raise about damaged files has no common base."""
    try:
        yield
    except pickle.UnpicklingError as error:  # its message tells how to run what it has refused
        raise ConfigError(f"{path}: policy.pth holds something besides tensors", key="init_from") from error
    except Exception as error:
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise ConfigError(f"{path} is not a valid SB3 zip: {reason}", key="init_from") from error


def _policy_member(archive: zipfile.ZipFile, max_bytes: int) -> zipfile.ZipInfo:
    for info in archive.infolist():
        parts = info.filename.replace("\\", "/").split("/")
        if parts[0] == "" or ":" in parts[0] or ".." in parts or stat.S_ISLNK(info.external_attr >> 16):
            raise ConfigError(f"its member {info.filename[:_SHOWN]!r} is a link or has a path that leads out of it")
    found = [info for info in archive.infolist() if info.filename == "policy.pth"]
    if len(found) != 1:
        raise ConfigError(f"it has {len(found)} members policy.pth; accepted: one")
    # The other methods have no limit to what a few bytes unpack to.
    if found[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ConfigError("policy.pth is packed by a method that SB3 does not use")
    if found[0].file_size > max_bytes:
        raise ConfigError(
            f"policy.pth has {found[0].file_size} bytes; accepted: up to {max_bytes}, several times what the policy has"
        )
    return found[0]


def _check_inner_zip(data: bytes) -> None:
    """A .pth file is a zip in its turn; PyTorch would unpack whatever size it says it has."""
    if not data.startswith(b"PK\x03\x04"):
        raise ConfigError("policy.pth is not of the format that PyTorch 1.6 and later write")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
    packed = any(info.compress_type != zipfile.ZIP_STORED for info in infos)
    if packed or sum(info.file_size for info in infos) > len(data):
        raise ConfigError("policy.pth is packed, which PyTorch does not do")
