"""Install packages of envs, one after the other, and use an env of each as their users would.

    python benchmarks/env_packages.py [NAME ...] [--folder DIR] [--page FILE] [--timeout-s 600] [--json FILE]

`env_packages.yaml` beside this file says what is installed for each name, how the env is named and which settings it
needs. Each package gets a virtual environment of its own, which sees the packages of the Python that runs this (so
that PyTorch is not installed again), marl_sb3 of this clone among them. In it run `doctor`, `train`, `evaluate`,
`evaluate --video` and `train --resume`, for a few env steps each. What a command prints when it fails is kept.

With `--page`, the rows of these packages are replaced in the table of a page, docs/envs_of_others.md; with `--folder`,
the virtual environments and the runs are kept there, and used again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import yaml
from command_line import parser
from measure import Report, Setting, say

HERE = Path(__file__).resolve().parent
TABLE = HERE / "env_packages.yaml"
SETTING = Setting(
    what="doctor, train, evaluate, a video and a resume in envs of many packages, each in a virtual environment",
    hyperparameters={"n_envs": 2, "n_steps": 32, "env steps": 128},
    threads="1 torch thread; one command after the other",
    changes={"A": "batched envs, where an env has a batched twin", "B": "fused networks, where they fit"},
    packages=("marl_sb3", "stable-baselines3", "torch", "pettingzoo", "gymnasium"),
)
TRAIN = ["--timesteps", "128", "--seed", "1", "--quiet"]
SMALL = ["n_envs=2", "n_steps=32", "batch_size=32", "n_epochs=1"]  # settings of `train`
COMMANDS = ("doctor", "train", "video", "evaluate", "resume")
STEP_S = 180.0  # seconds that one command may take, of those of the package
HEAD = "| what | installed by pip | ENV and settings | needs besides | outcome | versions | tried |"
OK = "ok"
VERSIONS = """\
import sys
from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in sys.argv[1:]))
"""


@dataclass(frozen=True)
class Package:
    """A line of the table: what is installed, and one env of it."""

    name: str  # what the user asks for
    install: Sequence[str]  # requirements, and options, of pip
    env: str  # the env, as commands take it
    options: Sequence[str] = ()  # of `doctor` and `train`: `env.size=8` is what `--set` sets
    short: Sequence[str] = ()  # the same, for short episodes here; no user needs them
    training: Sequence[str] = ()  # of `train` alone: the policy class, the algorithm
    system: str = ""  # what else it needs, in words
    under: Sequence[str] = ()  # what the commands run under, such as xvfb-run
    variables: Mapping[str, str] = field(default_factory=dict)  # environment variables of the commands
    versions: Sequence[str] = ()  # the packages whose versions are told; default: the first requirement


@dataclass(frozen=True)
class Tried:
    """What came of a package."""

    outcome: Mapping[str, str]  # command -> "ok", or what it printed at its end
    versions: str = ""
    seconds: float = 0.0
    when: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d"))

    def words(self) -> str:
        """Return the outcome for a table: what went well, then what did not, and why."""
        well = [command for command, said in self.outcome.items() if said == OK]
        others = [f"{command}: {said}" for command, said in self.outcome.items() if said != OK]
        if len(well) == len(COMMANDS):
            return OK
        return "; ".join([f"ok: {', '.join(well)}", *others] if well else others)


def packages() -> dict[str, Package]:
    """Read the table."""
    read = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return {name: Package(name, **{**line, "install": shlex.split(line["install"])}) for name, line in read.items()}


# --- Processes -------------------------------------------------------------------------------------------------------


def run(command: Sequence[str], timeout_s: float, folder: Path, variables: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a command, and end all its processes at the timeout; return its exit code, stdout and stderr."""
    paths = {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=errors,
            cwd=str(folder),
            env={**os.environ, **paths, **variables},
            start_new_session=True,
        ) as process:
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return 124, "", f"not done after {timeout_s:.0f} s"
        for file in (printed, errors):
            file.seek(0)
        return code, printed.read().decode(errors="replace"), errors.read().decode(errors="replace")


def last_words(errors: str) -> str:
    """Return what a command says at its end: from its last `error:` on, or else its last line."""
    plain = re.sub(r"\x1b\[[0-9;]*m|[^\s(]*/site-packages/", "", errors)  # without colours and paths of this machine
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    begins = [index for index, line in enumerate(lines) if line.startswith(("error:", "ERROR:"))]
    return " ".join(lines[begins[-1] :] if begins else lines[-1:]) or "it printed nothing"


@contextmanager
def folder_of(package: Package, folder: Path | None) -> Iterator[Path]:
    """Make the folder of a package, which is removed at the end unless the user names one for all."""
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            yield Path(made)
        return
    made = folder / re.sub(r"\W+", "_", package.name)
    made.mkdir(parents=True, exist_ok=True)
    yield made.resolve()


def python_of(folder: Path) -> str:
    """Return the Python of a package's virtual environment."""
    return str(folder / "venv" / "bin" / "python")


def install(package: Package, folder: Path, timeout_s: float) -> str:
    """Make the virtual environment with a package; return "ok", or what pip printed at its end."""
    installed = folder / "installed"
    if installed.is_file() and installed.read_text(encoding="utf-8") == " ".join(package.install):
        return OK
    shutil.rmtree(folder / "venv", ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (packages_of,) = (folder / "venv" / "lib").glob("python*/site-packages")
    seen = [*site.getsitepackages(), str(HERE.parent)]
    (packages_of / "base.pth").write_text("".join(f"{path}\n" for path in seen), encoding="utf-8")
    needed = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    pip = [sys.executable, "-m", "pip", "--python", python_of(folder), "install", "--quiet", "--no-compile"]
    code, _, errors = run([*pip, *needed, *package.install], timeout_s, folder, {})
    if code:
        said = " ".join(line for line in errors.splitlines() if line.startswith("ERROR:")) or last_words(errors)
        return re.sub(r"(\S+)==\S+,(?: \1==\S+,)+", r"\1,", said)  # not all versions that were tried
    installed.write_text(" ".join(package.install), encoding="utf-8")
    return OK


# --- What users do ---------------------------------------------------------------------------------------------------


def attempt(package: Package, base: Path | None, timeout_s: float) -> Tried:
    """Install a package, and use an env of it until a command fails on which the others depend."""
    started_s, outcome = time.monotonic(), {}
    with folder_of(package, base) as folder:
        said = install(package, folder, timeout_s)
        if said != OK:
            return Tried({"pip": said}, seconds=time.monotonic() - started_s)
        package = located(package, folder)
        for name, command in commands(package, folder).items():
            left_s = timeout_s - (time.monotonic() - started_s)
            if outcome.get("train", OK) != OK:
                break
            if name == "evaluate" and outcome["video"] == OK:  # which has evaluated, too
                outcome[name] = OK
                continue
            outcome[name] = asked(name, package, command, folder, min(STEP_S, max(left_s, 1.0)))
            say(f"  {name}: {outcome[name]}")
        versions = versions_of(package, folder)
    return Tried(outcome, versions, time.monotonic() - started_s)


def located(package: Package, folder: Path) -> Package:
    """Return the package with the path of its site-packages in place of `{packages}`."""
    path = str(next((folder / "venv" / "lib").glob("python*/site-packages"), folder))
    options = [option.replace("{packages}", path) for option in package.options]
    variables = {name: value.replace("{packages}", path) for name, value in package.variables.items()}
    return replace(package, options=options, variables=variables)


def commands(package: Package, folder: Path) -> dict[str, list[str]]:
    """Return the commands of marl_sb3, by what they are called in the report."""
    run_dir, video = folder / "run", folder / "video.gif"
    shutil.rmtree(run_dir, ignore_errors=True)
    settings = [part for option in [*package.options, *package.short] for part in ("--set", option)]
    training = [part for option in [*SMALL, *package.training] for part in ("--set", option)]
    # A run keeps its env's id, but not one of a module.
    again = ["--env", package.env] if ":" in package.env else []
    watched = ["evaluate", str(run_dir), "--episodes", "1", "--n-envs", "1", *again]
    return {
        "doctor": ["doctor", package.env, "--json", "--steps", "300", *settings],
        "train": ["train", package.env, *TRAIN, *settings, *training, "--run-dir", str(run_dir)],
        "video": [*watched, "--video", str(video)],
        "evaluate": watched,
        "resume": ["train", "--resume", str(run_dir), "--timesteps", "64", "--quiet", *again],
    }


def asked(name: str, package: Package, command: Sequence[str], folder: Path, timeout_s: float) -> str:
    """Run a command of marl_sb3; return "ok", or what it said."""
    line = [*package.under, python_of(folder), "-m", f"marl_sb3.{command[0]}", *command[1:]]
    code, printed, errors = run(line, timeout_s, folder, package.variables)
    (folder / f"{name}.txt").write_text(f"{' '.join(command)}\n{code}\n{printed}\n{errors}", encoding="utf-8")
    if name == "doctor" and printed.startswith("{"):
        report, _ = json.JSONDecoder().raw_decode(printed)  # an env may print after it
        faults = [f"fault {each['check']}" for each in report["findings"] if each["severity"] == "fault"]
        return ", ".join(faults) or OK
    said = last_words(errors.replace(f"{folder}/", ""))
    return OK if code == 0 else f"{said}{'' if code in (2, 124) else f' (exit code {code})'}"


def versions_of(package: Package, folder: Path) -> str:
    """Return the versions of what was installed, in words."""
    names = list(package.versions) or [re.split(r"[\[<>=~!;]", package.install[0])[0]]
    _, printed, errors = run([python_of(folder), "-c", VERSIONS, *names], 60, folder, {})
    return printed.strip() or last_words(errors)


# --- The page --------------------------------------------------------------------------------------------------------


def row(package: Package, tried: Tried) -> str:
    """Return the row of a package in the page."""
    settings = [f"`--set {option}`" for option in [*package.options, *package.training]]
    variables = [f"`{name}={value}`" for name, value in package.variables.items()]
    under = [f"`{' '.join(package.under)}`"] if package.under else []
    needs = "; ".join(filter(None, [*variables, *under, package.system]))
    typed = "<br>".join([f"`{package.env}`", *settings])
    cells = (package.name, f"`{shlex.join(package.install)}`", typed, needs, tried.words(), tried.versions, tried.when)
    return "| " + " | ".join(" ".join(each.split()).replace("|", "\\|") for each in cells) + " |"


def write_page(page: Path, rows: Mapping[str, str], known: Sequence[str]) -> None:
    """Replace the rows of packages in the table of a page; rows are in the order of `known`."""
    lines = page.read_text(encoding="utf-8").splitlines()
    head = lines.index(HEAD)
    end = next((index for index in range(head, len(lines)) if not lines[index].startswith("|")), len(lines))
    kept = {line.split(" | ")[0].removeprefix("| "): line for line in lines[head + 2 : end]}
    merged = {**kept, **rows}
    table = [merged[name] for name in known if name in merged]
    page.write_text("\n".join([*lines[: head + 2], *table, *lines[end:], ""]), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Try the packages, print what came of each, and write it into a page."""
    options, known = parser(__doc__, repeats=None), packages()
    options.add_argument("names", nargs="*", metavar="NAME", help="only these; default: all of env_packages.yaml")
    options.add_argument(
        "--folder", type=Path, metavar="DIR", help="keep what is installed and trained here; default: nothing is kept"
    )
    options.add_argument("--page", type=Path, metavar="FILE", help="replace their rows in this page; default: no page")
    options.add_argument(
        "--timeout-s", type=float, default=600.0, metavar="S", help="seconds for each package; default: 600"
    )
    arguments = options.parse_args(argv)
    if unknown := {*arguments.names} - {*known}:
        options.error(f"unknown: {', '.join(sorted(unknown))}; accepted: {', '.join(known)}")
    tried: dict[str, Tried] = {}
    for name in arguments.names or known:
        say(name)
        tried[name] = attempt(known[name], arguments.folder, arguments.timeout_s)
        say(f"  {tried[name].words()}")
        if arguments.page:
            write_page(arguments.page, {name: row(known[name], tried[name])}, list(known))
    SETTING.print()
    for name, found in tried.items():
        print(f"{name}: {found.words()}")
    all_well = sum(set(found.outcome.values()) == {OK} for found in tried.values())
    print(f"{all_well} of {len(tried)} did all")
    Report("env_packages", SETTING, {name: asdict(found) for name, found in tried.items()}).write(arguments.json)


if __name__ == "__main__":
    main()
