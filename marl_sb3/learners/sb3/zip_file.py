"""Read the weights in an SB3 zip, and nothing else of it; write zips that open without marl_sb3."""

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

_SHOWN = 80  # characters shown of a name from the file


_OURS = ("rollout_buffer_class", "replay_buffer_class")  # classes of marl_sb3


def write_zip(algorithm: BaseAlgorithm, path: Path) -> None:
    """Save one policy as SB3 does, without our buffer class, so that it opens where marl_sb3 is not installed."""
    algorithm.save(path, exclude=list(_OURS))


def require_zippable(algorithm: BaseAlgorithm) -> None:
    """Check that `write_zip` can save the algorithm: SB3 pickles classes, functions and spaces.

    Raises:
        CheckpointError: an attribute of the algorithm, which the message names, cannot be pickled.
    """
    for name, value in pickled_members(algorithm).items():
        if name not in _OURS:
            try:
                data_to_json({name: value})
            except Exception as error:  # pickling a user's object may raise anything
                raise CheckpointError(f"SB3 cannot pickle its {name}: {error}") from error


def sb3_weights(path: str | Path, max_bytes: int, *, trust_pickle: bool) -> dict[str, th.Tensor]:
    """Return the weights of the policy in an SB3 zip.

    Only `policy.pth` is read, by PyTorch's restricted unpickler, which only makes tensors. The pickles in `data`, which
    could run any code, are never opened. `trust_pickle` is still required: that unpickler is the only protection
    against a malicious file.

    Args:
        max_bytes: a larger `policy.pth` is refused before it is read.
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
    """Turn every exception of the zip reader and of PyTorch, which have no common base class, into ConfigError."""
    try:
        yield
    except pickle.UnpicklingError as error:  # not shown: its message advises to load the file without protection
        raise ConfigError(f"{path}: policy.pth holds something besides tensors", key="init_from") from error
    except Exception as error:
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise ConfigError(f"{path} is not a valid SB3 zip: {reason}", key="init_from") from error


def _policy_member(archive: zipfile.ZipFile, max_bytes: int) -> zipfile.ZipInfo:
    for info in archive.infolist():
        parts = info.filename.replace("\\", "/").split("/")
        if parts[0] == "" or ":" in parts[0] or ".." in parts or stat.S_ISLNK(info.external_attr >> 16):
            raise ConfigError(f"its member {info.filename[:_SHOWN]!r} is a link or has a path that leads out")
    found = [info for info in archive.infolist() if info.filename == "policy.pth"]
    if len(found) != 1:
        raise ConfigError(f"it has {len(found)} members policy.pth; accepted: one")
    # With the other methods a few bytes could unpack to any size.
    if found[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ConfigError("policy.pth is compressed by a method that SB3 does not use")
    if found[0].file_size > max_bytes:
        raise ConfigError(
            f"policy.pth has {found[0].file_size} bytes; accepted: up to {max_bytes}, "
            "several times the size of the policy"
        )
    return found[0]


def _check_inner_zip(data: bytes) -> None:
    """Refuse a compressed .pth file, which is a zip too: PyTorch would unpack it to any size that it claims."""
    if not data.startswith(b"PK\x03\x04"):
        raise ConfigError("policy.pth is not of the format that PyTorch 1.6 and later write")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
    packed = any(info.compress_type != zipfile.ZIP_STORED for info in infos)
    if packed or sum(info.file_size for info in infos) > len(data):
        raise ConfigError("policy.pth is compressed, which PyTorch does not do")
