"""`python -m marl_sb3.export`: write the policies of a run to files that can be opened without marl_sb3."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

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
from marl_sb3.startup import without_collections
from marl_sb3.transfer.export import FORMATS, Exported, export_policies

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
        print(_line(bundle.checkpoint, file), flush=True)
    return EXIT_DONE


def _line(checkpoint: str | None, file: Exported) -> str:
    line = f"{file.path}: policy {file.policy_id} of {checkpoint}, {file.path.stat().st_size / 1000:.0f} kB"
    return line if file.difference is None else f"{line}; largest difference from PyTorch {file.difference:.1g}"


if __name__ == "__main__":
    sys.exit(main())
