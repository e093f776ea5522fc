"""`python -m marl_sb3.export`: the policies of a run as files that need no marl_sb3."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from marl_sb3.cli import (
    EXIT_DONE,
    CommandParser,
    add_env_option,
    add_verbosity,
    named_env,
    run_command,
    setup_logging,
    tell_run,
)
from marl_sb3.errors import ConfigError, ExportError, path_is_usable
from marl_sb3.ids import file_names
from marl_sb3.startup import without_collections
from marl_sb3.storage.atomic import UNFINISHED, temporary_folder
from marl_sb3.types import PolicyID

if TYPE_CHECKING:
    from marl_sb3.learners.bundle import PolicyBundle

_EPILOG = """\
sb3: POLICY.zip, which stable_baselines3.PPO.load opens where marl_sb3 is not
     installed
onnx: POLICY.onnx, which any ONNX runtime opens; needs
     pip install 'marl_sb3[onnx]'
  in   observation, or observation.KEY for each key of a Dict: a batch, as the
       env gives them
  out  actions (deterministic), values, and logits or mean and log_std
  Each file is compared with the policy, on random observations, before it gets
  its name.

examples
  python -m marl_sb3.export runs/arena/20260101-120000-abcd
  python -m marl_sb3.export runs/arena/20260101-120000-abcd --format onnx

exit codes: 0 done, 1 failed, 2 wrong command line or run folder
"""


@dataclass(frozen=True)
class Exported:
    """A file that holds a policy.

    Attributes:
        path: the file.
        policy_id: the policy.
        difference: the largest difference from the policy, see `onnx_check`; None where nothing was computed.
    """

    path: Path
    policy_id: PolicyID
    difference: float | None = None


About = Mapping[str, str]  # what an ONNX file says of where its policy comes from


def _write_sb3(bundle: PolicyBundle, _: About, folder: Path) -> list[Exported]:
    return [Exported(path, policy_id) for policy_id, path in bundle.save_policies(folder).items()]


def _write_onnx(bundle: PolicyBundle, about: About, folder: Path) -> list[Exported]:
    return [
        _write_onnx_of(bundle, about, policy_id, folder / name)
        for policy_id, name in file_names(list(bundle.policies), ".onnx").items()
    ]


def _write_onnx_of(bundle: PolicyBundle, about: About, policy_id: PolicyID, path: Path) -> Exported:
    from marl_sb3.transfer.onnx_check import largest_difference
    from marl_sb3.transfer.onnx_graph import to_onnx

    algorithm, its = bundle.policies[policy_id], bundle.spaces[policy_id]
    metadata = {
        "policy": policy_id,
        "agents": json.dumps(bundle.agents_of(policy_id)),
        "observation_space": str(its.observation),
        "action_space": str(its.action),
        **about,
        "checkpoint": bundle.checkpoint or "",
    }
    try:
        path.write_bytes(to_onnx(algorithm, its.observation, metadata))
        # What is compared is what has been written.
        difference = largest_difference(path.read_bytes(), algorithm, its.observation)
    except (ConfigError, ExportError) as error:
        raise type(error)(f"policy {policy_id!r}: {error}") from error
    return Exported(path, policy_id, difference)


@dataclass(frozen=True)
class _Format:
    suffix: str
    # Into an empty folder, under the names of `ids.file_names`.
    write: Callable[[PolicyBundle, About, Path], list[Exported]]


FORMATS: Mapping[str, _Format] = {"sb3": _Format(".zip", _write_sb3), "onnx": _Format(".onnx", _write_onnx)}


def export_policies(
    bundle: PolicyBundle, format_name: str, out: Path, about: About = MappingProxyType({}), *, force: bool = False
) -> list[Exported]:
    """Write a file for each policy.

    All of them are written and checked before the first of them gets its name.

    Args:
        bundle: the policies, as `load_policies` returns them.
        format_name: one of `FORMATS`.
        out: folder; made if it is not there.
        about: what an ONNX file is to say of where its policy comes from, by name.
        force: replace files that are there.

    Raises:
        ConfigError: a file is there already, or a policy cannot be exported in that format.
        ExportError: an ONNX file does not act as its policy.
    """
    chosen = FORMATS[format_name]
    targets = {policy_id: out / name for policy_id, name in file_names(list(bundle.policies), chosen.suffix).items()}
    with ExitStack() as cleanup:
        with path_is_usable("--out: cannot write to", out, "out"):
            _check_targets(out, list(targets.values()), force)
            out.mkdir(parents=True, exist_ok=True)
            unfinished = cleanup.enter_context(temporary_folder(out / f"{UNFINISHED}export"))
        written = chosen.write(bundle, about, unfinished)
        for file in written:
            os.replace(file.path, targets[file.policy_id])
    return [Exported(targets[file.policy_id], file.policy_id, file.difference) for file in written]


def _check_targets(out: Path, targets: Sequence[Path], force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out: {out} is not a folder", key="out")
    for path in targets:
        if os.path.lexists(path) and not force:
            raise ConfigError(f"{path} is there already; --force replaces it", key="out")


# --- The command -----------------------------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = CommandParser(
        prog="python -m marl_sb3.export",
        description="Write the policies of a run to files that need no marl_sb3.",
        epilog=_EPILOG,
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, or a folder of runs: the newest")
    parser.add_argument(
        "--format", type=str.lower, choices=list(FORMATS), default="sb3", help="see below; default: sb3"
    )
    parser.add_argument(
        "--checkpoint", metavar="WHICH", default="best", help="best, latest or an iteration; default: best"
    )
    add_env_option(parser, also_positional=False, makes_env=False)
    parser.add_argument("--out", metavar="DIR", help="folder of the files; default: RUN/export/FORMAT")
    parser.add_argument("--force", action="store_true", help="replace files that are there; default: off")
    add_verbosity(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = build_parser().parse_args(argv)
    return run_command(lambda: _export(arguments), arguments.verbosity)


def _export(arguments: argparse.Namespace) -> int:
    setup_logging(arguments.verbosity)
    from marl_sb3.runs.folder import find_run

    folder = find_run(arguments.run)
    tell_run(arguments.run, folder)
    out = Path(arguments.out) if arguments.out else folder / "export" / arguments.format
    with without_collections():
        from marl_sb3.runs.restore import restore_policies  # takes seconds: after what can be refused without it

        config, bundle = restore_policies(folder, arguments.checkpoint, named_env(arguments))
    about = {"env": config.env, "run": folder.resolve().name}
    for file in export_policies(bundle, arguments.format, out, about, force=arguments.force):
        print(_line(bundle, file), flush=True)
    return EXIT_DONE


def _line(bundle: PolicyBundle, file: Exported) -> str:
    line = f"{file.path}: policy {file.policy_id} of {bundle.checkpoint}, {file.path.stat().st_size / 1000:.0f} kB"
    return line if file.difference is None else f"{line}; largest difference from PyTorch {file.difference:.1g}"


if __name__ == "__main__":
    sys.exit(main())
