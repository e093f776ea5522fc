"""The command line of `python -m marl_sb3.export`."""

from __future__ import annotations

import argparse

from marl_sb3.cli.parser import CommandParser, add_env_option, add_run, add_verbosity
from marl_sb3.transfer.export import FORMATS

_EPILOG = """\
sb3   POLICY.zip, which stable_baselines3.PPO.load opens without marl_sb3
onnx  POLICY.onnx, which any ONNX runtime opens; needs
      pip install -c constraints.txt '.[onnx]'
        inputs   a batch of observations of the env: observation, or
                 observation.KEY for each key of a Dict
        outputs  actions (deterministic), values, and logits or mean and
                 log_std
      Before a file is put in place, its outputs are compared with those of the
      policy for random observations.

examples
  python -m marl_sb3.export runs/arena/20260101-120000-abcd
  python -m marl_sb3.export runs/arena/20260101-120000-abcd --format onnx

exit codes: 0 done, 1 failed, 2 wrong command line or run folder
"""


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of `export`."""
    parser = CommandParser(
        "python -m marl_sb3.export",
        "RUN [options]",
        description="Write the policies of a run as SB3 zips or ONNX files.",
        epilog=_EPILOG,
    )
    add_run(parser)
    parser.option(
        "--format", "format of the files, see below; default: sb3", type=str.lower, choices=list(FORMATS), default="sb3"
    )
    add_env_option(parser, also_positional=False, makes_env=False)
    parser.option("--out DIR", "folder of the files; default: RUN/export/FORMAT")
    parser.option("--force", "replace existing files; default: off")
    add_verbosity(parser)
    return parser
