"""`python -m marl_sb3.export`: write the policies of a run for others: as SB3 zips, as ONNX, or as a run on the Hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from marl_sb3 import cli
from marl_sb3.core.config.values import Count
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.extensions.transfer.export import FORMATS, export_policies
from marl_sb3.files.paths import path_is_usable
from marl_sb3.files.regular import require_own
from marl_sb3.files.signed import require_key, sign_folder
from marl_sb3.output import print_text
from marl_sb3.startup import require_extra, without_collections

if TYPE_CHECKING:
    from marl_sb3.runs.run import SavedRun

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
      The file's metadata say what each is, and the first states. Before a
      file is saved, its outputs are compared with those of the policy for
      random inputs.
run   a run folder with that checkpoint alone, as safetensors and JSON, which
      all commands take; a model card, README.md, with what the policies reach;
      and a video, if the env can render. --hub pushes it: the commands then
      take hf:OWNER/NAME. All settings are included, with their paths and
      names.

examples
  python -m marl_sb3.export runs/arena/20260101-120000-abcd
  python -m marl_sb3.export runs/arena/20260101-120000-abcd --format onnx
  python -m marl_sb3.export runs/arena --hub me/arena --private
  python -m marl_sb3.evaluate hf:me/arena
  python -m marl_sb3.export runs/arena --format run --sign key.pem

exit codes: 0 done, 1 failed, 2 wrong command line or run folder
"""


@cli.record
class RunOptions:
    """What the format `run` takes."""

    hub: Annotated[
        str | None,
        "--hub OWNER/NAME",
        "push the folder to this repo of the Hugging Face Hub, which is made if it is not there; a token is taken from "
        "HF_TOKEN or `hf auth login`; needs the extra hub; default: it stays here",
        cli.Section("the format run"),
    ]
    private: Annotated[bool, "--private", "the repo is private, or nothing is pushed; default: as its owner's are"]
    revision: Annotated[str | None, "--revision BRANCH", "branch, which is made if it is not there; default: main"]
    message: Annotated[str | None, "--message TEXT", "message of the commit; default: the env and its env steps"]
    dry_run: Annotated[bool, "--dry-run", "write the folder, and push nothing; default: off"]
    episodes: Annotated[
        Count, "--episodes N", "episodes played for the card; 0: its figures are those of the log; default: 20"
    ] = 20
    reference: Annotated[
        Sequence[str],
        "--reference NAME=VALUE",
        "a sum of returns from elsewhere, for the card, such as that of a scripted policy; may be repeated; "
        "default: random agents alone",
    ]

    def require_accepted(self, format_name: str | None) -> None:
        """Refuse options that do not go together."""
        if self.hub is None:
            for name in ("private", "revision", "message", "dry_run"):
                if getattr(self, name):
                    flag = f"--{name.replace('_', '-')}"
                    raise ConfigError(f"{flag} is for the Hub; accepted: with --hub OWNER/NAME", key=flag)
            if format_name == "run":
                return
            for option, value in cli.given_options(self):
                if value not in (None, False, [], 20):
                    raise ConfigError(f"{option.flag} is of --format run; accepted: with it", key=option.flag)
        elif format_name not in (None, "run"):
            raise ConfigError(f"--format is {format_name}; accepted with --hub: run", key="format")

    def references(self) -> dict[str, float]:
        """Return the values by name.

        Raises:
            ConfigError: one is no number.
        """
        found = cli.assignments("--reference", self.reference, "NAME=VALUE")
        for name, value in found.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                refuse(f"--reference {name}", value, "a number", "--reference")
        return found


@cli.command("export RUN [options]", "Write the policies of a run as SB3 zips or ONNX, or for the Hub.", _EPILOG)
def main(
    path: Annotated[str, cli.RUN],
    *,
    checkpoint: Annotated[str | None, cli.CHECKPOINT],
    format: Annotated[
        str | None, "--format", "format of the files, see below; default: sb3", str.lower, [*FORMATS, "run"]
    ],
    out: Annotated[str | None, "--out DIR", "folder of the files; default: RUN/export/FORMAT"],
    force: Annotated[bool, "--force", "replace existing files; default: off"],
    sign: Annotated[
        Path | None,
        "--sign KEY",
        "sign the folder by this private key, PEM, as its file model.sig; needs the extra signing; default: unsigned",
    ],
    of_run: RunOptions,
    verify: Annotated[Path | None, cli.VERIFY, cli.Section("other options")],
    env: cli.OfRun,
) -> int:
    """Write the files; returns the exit code."""
    from marl_sb3.extensions.hub import is_downloaded, require_repo

    of_run.require_accepted(format)
    if sign is not None:
        require_key(sign)
    if of_run.hub is not None:
        require_repo(of_run.hub)
        if not of_run.dry_run:
            require_extra("--hub", "hub")
    name = "run" if of_run.hub is not None else format or "sb3"
    folder = cli.found_run(path, verify)
    target = Path(out or folder / "export" / name)
    if not out:
        if verify is not None or is_downloaded(folder):
            raise ConfigError(f"{folder} is a copy of {path}; accepted: with --out DIR", key="out")
        with path_is_usable("--out: cannot write to", target, "out"):  # a link or a file there is refused
            require_own(folder, ["export/", f"export/{name}/"])
    with without_collections():  # the imports take seconds: wrong options are refused before
        from marl_sb3.runs.run import SavedRun

        run = SavedRun.open(folder, env.named(), makes_env=False)
    if name == "run":
        return _as_run(run, checkpoint, target, of_run, env.named(), sign, force=force)
    bundle = run.policies(checkpoint)
    about = {"env": run.config.env, "run": folder.resolve().name}
    files = export_policies(bundle, name, target, about, force=force)
    if sign is not None:
        sign_folder(target, sign)
    lines = [bundle.checkpoint_why] if bundle.checkpoint_why else []
    for file in files:
        size = f"{file.path.stat().st_size / 1000:.0f} kB"
        differs = "" if file.difference is None else f"; largest difference from PyTorch {file.difference:.1g}"
        lines.append(f"{file.path}: policy {file.policy_id} of {bundle.checkpoint}, {size}{differs}")
    for line in lines:
        standard_console().print(line, soft_wrap=True)
    return cli.EXIT_DONE


def _as_run(
    run: "SavedRun",
    checkpoint: str | None,
    out: Path,
    options: RunOptions,
    env: str | None,
    key: Path | None,
    *,
    force: bool,
) -> int:
    """Write the folder of a run for others, and push it."""
    from marl_sb3.extensions.hub import Address, push
    from marl_sb3.tools.publishing.folder import write_run_folder

    address = None if options.hub is None else Address(options.hub, options.revision)
    card: dict[str, Any] = {"address": address, "episodes": options.episodes, "references": options.references()}
    found = write_run_folder(run, checkpoint, out, env, **card, force=force)
    if key is not None:
        sign_folder(out, key)
    for line in filter(None, [found.why, f"{out}: {found.name}, its settings, and a model card"]):
        standard_console().print(line, soft_wrap=True)
    if options.hub is not None and not options.dry_run:
        message = options.message or f"{run.config.env}, {found.about.integer('num_env_steps'):,} env steps"
        print_text(push(out, options.hub, message, private=options.private, revision=options.revision))
    return cli.EXIT_DONE
