"""`python -m marl_sb3.export`: write the policies of a run to files that can be opened without marl_sb3."""

import sys
from pathlib import Path
from typing import Annotated

from marl_sb3.cli import CHECKPOINT, EXIT_DONE, RUN, OfRunForLog, command, found_run
from marl_sb3.extensions.transfer import FORMATS, Exported, export_policies
from marl_sb3.files import path_is_usable, require_own
from marl_sb3.startup import without_collections

_EPILOG = """\
sb3   POLICY.zip, which stable_baselines3.PPO.load opens without marl_sb3
onnx  POLICY.onnx, which any ONNX runtime opens; needs
      pip install -c constraints.txt '.[onnx]'
        inputs   a batch of observations of the env: observation, or
                 observation.KEY for each key of a Dict; action_mask of
                 policies with masks; hidden_state, cell_state and
                 episode_start of policies with memory
        outputs  actions (deterministic), values, logits or mean and log_std,
                 q_values; next_ and the name of each state
      The file's metadata say what each is, and what to feed first. Before a
      file is put in place, its outputs are compared with those of the policy
      for random inputs.

examples
  python -m marl_sb3.export runs/arena/20260101-120000-abcd
  python -m marl_sb3.export runs/arena/20260101-120000-abcd --format onnx

exit codes: 0 done, 1 failed, 2 wrong command line or run folder
"""


@command("export RUN [options]", "Write the policies of a run as SB3 zips or ONNX files.", _EPILOG)
def main(
    path: Annotated[str, RUN],
    *,
    checkpoint: Annotated[str | None, CHECKPOINT],
    format: Annotated[str, "--format", "format of the files, see below; default: sb3", str.lower, [*FORMATS]] = "sb3",
    env: OfRunForLog,
    out: Annotated[str | None, "--out DIR", "folder of the files; default: RUN/export/FORMAT"],
    force: Annotated[bool, "--force", "replace existing files; default: off"],
) -> int:
    """Write the files; returns the exit code."""
    folder = found_run(path)
    target = Path(out or folder / "export" / format)
    if not out:
        with path_is_usable("--out: cannot write to", target, "out"):  # a link or a file there is refused
            require_own(folder, ["export/", f"export/{format}/"])
    with without_collections():  # the imports take seconds: wrong options are refused before
        from marl_sb3.runs import SavedRun

        run = SavedRun.open(folder, env.named(), makes_env=False)
        bundle = run.policies(checkpoint)
    about = {"env": run.config.env, "run": folder.resolve().name}
    files = export_policies(bundle, format, target, about, force=force)
    said = [bundle.checkpoint_why] if bundle.checkpoint_why else []
    for line in [*said, *(_line(bundle.checkpoint, file) for file in files)]:
        print(line, flush=True)
    return EXIT_DONE


def _line(checkpoint: str | None, file: Exported) -> str:
    line = f"{file.path}: policy {file.policy_id} of {checkpoint}, {file.path.stat().st_size / 1000:.0f} kB"
    return line if file.difference is None else f"{line}; largest difference from PyTorch {file.difference:.1g}"


if __name__ == "__main__":
    sys.exit(main())
