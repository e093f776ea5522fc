"""Files of SB3: its zips are written, and read without running their pickles; a `VecNormalize` is written and read."""

from __future__ import annotations

import io
import json
import pickle
import stat
import zipfile
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.save_util import data_to_json
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule
from stable_baselines3.common.vec_env import VecNormalize

from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.sb3.private import pickled_members, progress_remaining
from marl_sb3.core.sb3.schedules import Exponential, Piecewise
from marl_sb3.core.sb3.spaces import vec_normalize
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.files.paths import file_names
from marl_sb3.types import PolicyID

if TYPE_CHECKING:
    from marl_sb3.core.acting.by_agent import PolicyByAgent

_SHOWN = 80  # characters shown of a name from the file
_OURS = ("rollout_buffer_class", "replay_buffer_class")  # classes of marl_sb3
_PLAIN = (int, float, str, type(None))  # what JSON holds; most members are

# --- For the core -----------------------------------------------------------------------------------------------------


class SB3Files:
    """Files of single policies for those who do not have marl_sb3: zips of SB3, and files of its `VecNormalize`."""

    def require_writable(self, algorithm: BaseAlgorithm) -> None:
        """Check before a training that the policy could be written after it; SB3 pickles classes, functions and spaces.

        Raises:
            CheckpointError: it could not; the message names the attribute of the algorithm.
        """
        for name, value in pickled_members(algorithm).items():
            if name not in _OURS and not isinstance(value, _PLAIN):
                try:
                    data_to_json({name: value})
                except Exception as error:  # pickling a user's object may raise anything
                    raise CheckpointError(f"SB3 cannot pickle its {name}: {error}") from error

    def write(self, policies: PolicyByAgent, folder: Path) -> dict[PolicyID, Path]:
        """Write the policies with their processing into a folder, and return their files; see `files.file_names`.

        An algorithm that is no subclass of SB3's gets no file.
        """
        names, paths = file_names(list(policies.policies), ".zip"), {}
        for policy_id, algorithm in policies.policies.items():
            if isinstance(algorithm, BaseAlgorithm):
                paths[policy_id] = folder / names[policy_id]
                _write_zip(algorithm, paths[policy_id])
                gamma: float = algorithm.gamma  # type: ignore[attr-defined]
                _write_processing(policies.processing[policy_id], gamma, paths[policy_id])
        return paths

    def unpickle_statistics(self, processing: Processing, path: Path) -> None:
        """Take over the running statistics of a `VecNormalize` that SB3 saved.

        This unpickles the file, which may run any code: it is called only where the user asks for it by name.

        Raises:
            ConfigError: the file cannot be read, is no `VecNormalize`, or does not fit the processing; nothing is
                changed.
        """
        accepted = "what VecNormalize.save of Stable-Baselines3 wrote"
        try:
            saved = pickle.loads(path.read_bytes())
        except Exception as error:  # a pickle may raise anything
            raise ConfigError(
                f"{path} cannot be unpickled: {type(error).__name__}: {error}; accepted: {accepted}"
            ) from error
        if not isinstance(saved, VecNormalize):
            raise ConfigError(f"{path} holds a {type(saved).__name__}; accepted: {accepted}")
        found: dict[str, Any] = {"returns": saved.ret_rms} if processing.settings.normalize_rewards else {}
        if processing.normalizer is not None:
            if not saved.norm_obs:
                raise ConfigError(f"{path} holds no statistics of observations, which the policy normalises")
            own: Any = saved.obs_rms
            by_key = own if isinstance(own, dict) else dict.fromkeys(processing.normalizer.statistics, own)
            found |= {f"observations/{key}" if key else "observations": moments for key, moments in by_key.items()}
        state = {
            name: {"mean": np.array(moments.mean), "var": np.array(moments.var), "count": float(moments.count)}
            for name, moments in found.items()
        }
        try:
            processing.read_state(StateReader(state, str(path)))()
        except CheckpointError as error:
            raise ConfigError(f"the statistics do not fit the policy: {error}") from error


SB3_FILES = SB3Files()

# --- Writing ---------------------------------------------------------------------------------------------------------


def _write_zip(algorithm: BaseAlgorithm, path: Path) -> None:
    """Save one policy as SB3 does, without our classes, so that it opens where marl_sb3 is not installed.

    SB3 pickles its schedules: those of marl_sb3 become SB3's constants of their present values.
    """
    stock: dict[str, Any] = {}
    for name, value in vars(algorithm).items():
        inner = value.value_schedule if isinstance(value, FloatSchedule) else value
        if isinstance(inner, (Exponential, Piecewise)):
            constant = ConstantSchedule(inner(progress_remaining(algorithm)))
            stock[name] = constant if inner is value else FloatSchedule(constant)
    if stock:
        algorithm = copy(algorithm)
        vars(algorithm).update(stock)
    algorithm.save(path, exclude=list(_OURS))


_NOTE = (
    "The zip holds the policy behind its processing. `statistics` of normalised observations and rewards are in "
    "VECNORMALIZE.pkl, which `VecNormalize.load(path, venv)` of Stable-Baselines3 opens; all other settings have to be "
    "applied to the env in this order. marl_sb3.load_policies does all of it."
)


def _write_processing(processing: Processing, gamma: float, zip_path: Path) -> None:
    """Write the processing of a policy beside its SB3 zip; nothing is written if there is none.

    `NAME.vecnormalize.pkl` is what `VecNormalize.load` opens: statistics that do not change (`training=False`). It is
    written if observations or rewards are normalised. `NAME.processing.json` has the settings.

    Args:
        processing: of the policy.
        gamma: its discount.
        zip_path: `NAME.zip`.
    """
    changed = processing.settings.changed()
    if not changed:
        return
    if processing.statistics:
        vec_normalize(processing, gamma, RunningMeanStd.copy).save(str(zip_path.with_suffix(".vecnormalize.pkl")))
    note = _NOTE.replace("VECNORMALIZE", f"{zip_path.stem}.vecnormalize")
    text = json.dumps({"note": note, "settings": changed, "order": list(processing.processors)}, indent=2)
    zip_path.with_suffix(".processing.json").write_text(text + "\n", encoding="utf-8")


# --- Reading weights -------------------------------------------------------------------------------------------------


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
    # Every exception of the zip reader and of PyTorch, which have no common base class, becomes a ConfigError.
    try:
        with zipfile.ZipFile(path) as archive, archive.open(_policy_member(archive, max_bytes)) as member:
            data = member.read(max_bytes)
        _check_inner_zip(data)
        weights = th.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
            raise ConfigError("policy.pth does not hold tensors by name")
        return dict(weights)
    except pickle.UnpicklingError as error:  # not shown: its message advises to load the file without protection
        raise ConfigError(f"{path}: policy.pth has more than tensors", key="init_from") from error
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
