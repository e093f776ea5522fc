"""Write policies to files that can be opened without marl_sb3: SB3 zips and ONNX."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from marl_sb3.errors import ConfigError, ExportError
from marl_sb3.files.atomic import UNFINISHED, temporary_folder, with_filename
from marl_sb3.files.paths import file_names, path_is_usable
from marl_sb3.systems import replace as in_place_of
from marl_sb3.types import PolicyID

if TYPE_CHECKING:
    from marl_sb3.core.acting.by_agent import PolicyBundle


@dataclass(frozen=True)
class Exported:
    """A file that holds a policy."""

    path: Path
    policy_id: PolicyID
    # the largest difference between the outputs of the file and of the policy, see `onnx_check`; None for a zip, whose
    # outputs are not compared
    difference: float | None = None


About = Mapping[str, str]  # the origin of the policies, which ONNX files hold as metadata
# Format -> the suffix of a policy's file, and those of files that may be beside it.
FORMATS: Mapping[str, Sequence[str]] = {
    "sb3": (".zip", ".vecnormalize.pkl", ".processing.json"),
    "onnx": (".onnx",),
}


def export_policies(
    bundle: PolicyBundle, format_name: str, out: Path, about: About = MappingProxyType({}), *, force: bool = False
) -> list[Exported]:
    """Write a file for each policy.

    The files are written to a temporary folder and checked there. Only then they are moved to `out`.

    Args:
        bundle: the policies, as `load_policies` returns them.
        out: folder; made if it does not exist.
        about: metadata of ONNX files: the origin of the policies.

    Raises:
        ConfigError: a file exists already, or a policy cannot be exported in that format.
        ExportError: an ONNX file does not act as its policy.
    """
    suffix, *companions = FORMATS[format_name]
    names = file_names(list(bundle.policies), suffix)
    targets = {policy_id: out / name for policy_id, name in names.items()}
    with ExitStack() as cleanup:
        with path_is_usable("--out: cannot write to", out, "out"):
            if out.exists() and not out.is_dir():
                raise ConfigError(f"--out: {out} is not a folder", key="out")
            for path in [target.with_suffix(each) for target in targets.values() for each in (suffix, *companions)]:
                if os.path.lexists(path) and not force:
                    raise ConfigError(f"{path} exists already; --force replaces it", key="out")
            out.mkdir(parents=True, exist_ok=True)
            unfinished = cleanup.enter_context(temporary_folder(out / f"{UNFINISHED}export"))
        with with_filename(out):
            if format_name == "onnx":
                written = [_write_onnx(bundle, about, each, unfinished / name) for each, name in names.items()]
            else:
                written = [Exported(path, policy_id) for policy_id, path in bundle.save_policies(unfinished).items()]
        for file in written:
            target = targets[file.policy_id]
            for suffix in companions:  # those beside it become those that were written with it
                target.with_suffix(suffix).unlink(missing_ok=True)
                if file.path.with_suffix(suffix).exists():
                    in_place_of(file.path.with_suffix(suffix), target.with_suffix(suffix))
            in_place_of(file.path, target)
    return [replace(file, path=targets[file.policy_id]) for file in written]


def _write_onnx(bundle: PolicyBundle, about: About, policy_id: PolicyID, path: Path) -> Exported:
    from marl_sb3.extensions.transfer.onnx_check import largest_difference
    from marl_sb3.extensions.transfer.onnx_graph import graph_of, to_onnx

    algorithm, env_spaces = bundle.policies[policy_id], bundle.spaces[policy_id]
    processing, space, of_processing = graph_of(bundle.processing[policy_id], *env_spaces)
    metadata = {
        "policy": policy_id,
        "agents": json.dumps(bundle.agents_of(policy_id)),
        "observation_space": str(env_spaces.observation),
        "action_space": str(env_spaces.action),
        **of_processing,
        **about,
        "checkpoint": bundle.checkpoint or "",
    }
    try:
        path.write_bytes(to_onnx(algorithm, space, metadata, processing))
        # The file is read again to check what was written.
        difference = largest_difference(path.read_bytes(), algorithm, space, processing=processing)
    except (ConfigError, ExportError) as error:
        raise type(error)(f"policy {policy_id!r}: {error}") from error
    return Exported(path, policy_id, difference)
