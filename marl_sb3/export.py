"""`python -m marl_sb3.export`: write the policies of a run to files that can be opened without marl_sb3."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from marl_sb3.cli.command import EXIT_DONE, run_command, setup_logging
from marl_sb3.cli.export import build_parser
from marl_sb3.cli.parser import found_run, import_users_modules, named_env
from marl_sb3.errors import path_is_usable
from marl_sb3.startup import without_collections
from marl_sb3.storage.regular import require_own
from marl_sb3.transfer.export import Exported, export_policies


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = build_parser().parse_args(argv)
    return run_command(lambda: _export(arguments), arguments.verbosity)


def _export(arguments: argparse.Namespace) -> int:
    setup_logging(arguments.verbosity)
    import_users_modules(arguments)
    folder = found_run(arguments.run)
    out = Path(arguments.out) if arguments.out else _folder_in(folder, arguments.format)
    with without_collections():  # the imports take seconds: wrong options are refused before
        from marl_sb3.runs.run import SavedRun

        run = SavedRun.open(folder, named_env(arguments), makes_env=False)
        bundle = run.policies(arguments.checkpoint)
    about = {"env": run.config.env, "run": folder.resolve().name}
    files = export_policies(bundle, arguments.format, out, about, force=arguments.force)
    said = [bundle.checkpoint_why] if bundle.checkpoint_why else []
    for line in [*said, *(_line(bundle.checkpoint, file) for file in files)]:
        print(line, flush=True)
    return EXIT_DONE


def _folder_in(run: Path, format_name: str) -> Path:
    """Where files are exported to without `--out`. A stranger may have put a link there."""
    out = run / "export" / format_name
    with path_is_usable("--out: cannot write to", out, "out"):
        require_own(run, ["export/", f"export/{format_name}/"])
    return out


def _line(checkpoint: str | None, file: Exported) -> str:
    line = f"{file.path}: policy {file.policy_id} of {checkpoint}, {file.path.stat().st_size / 1000:.0f} kB"
    return line if file.difference is None else f"{line}; largest difference from PyTorch {file.difference:.1g}"


if __name__ == "__main__":
    sys.exit(main())
