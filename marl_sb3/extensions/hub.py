"""Runs on the Hugging Face Hub: addresses `hf:OWNER/NAME[@REVISION]`, a download of data alone, and a push.

A repo of a run is a run folder with the files in `_FILE`: settings, results, a model card, a film, and checkpoints of
JSON and safetensors. Nothing else is downloaded, so that no pickle of a repo comes near anything that reads it. What
was downloaded is read as any other run folder, whose content is untrusted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from filelock import FileLock

import marl_sb3
from marl_sb3.doors import STORES, Store
from marl_sb3.errors import ConfigError, MarlSb3Error, refuse
from marl_sb3.files.atomic import remove_folder, replaced_folder
from marl_sb3.files.paths import as_path, path_is_usable
from marl_sb3.files.regular import is_regular
from marl_sb3.startup import require_extra

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from marl_sb3.core.state.checkpoint import Checkpoint, Tensors
    from marl_sb3.core.state.state import State

T = TypeVar("T")

ACCEPTED = "hf:OWNER/NAME, or hf:OWNER/NAME@REVISION with a branch, a tag or a commit"

_REPO = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)
_ADDRESS = re.compile(rf"hf:({_REPO.pattern})(?:@([\w][\w./-]{{0,199}}))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONFIG, _CHECKPOINT = "config.yaml", r"checkpoints/ckpt-[0-9]{6,12}/"
_FILE = re.compile(
    rf"config\.yaml|model\.sig|result\.jsonl|README\.md|replay\.(gif|mp4)|"
    rf"{_CHECKPOINT}(manifest\.json|state\.json|[a-z]+(-[0-9]{{3,6}})?\.safetensors)"
)
_OF_PICKLES = (".zip", ".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")
_MOST_FILES = 1000
_MOST_BYTES = 2**34  # of all files; a policy has megabytes
_FROM_HUB = ".from_hub"  # beside the folders that were downloaded


# --- Addresses -------------------------------------------------------------------------------------------------------


class Address(NamedTuple):
    """A repo, and a branch, a tag or a commit; None: its branch `main`."""

    repo: str
    revision: str | None

    def __str__(self) -> str:
        return f"hf:{self.repo}" + ("" if self.revision is None else f"@{self.revision}")


def is_address(path: object) -> bool:
    """Whether a path that the user names is an address on the Hub; it may be a wrong one."""
    return isinstance(path, (str, Path)) and str(path).startswith("hf:")


def parse_address(path: str | Path) -> Address:
    """Read an address.

    Raises:
        ConfigError: it is none.
    """
    found = _ADDRESS.fullmatch(str(path).replace(os.sep, "/"))  # as a `Path`, it may have another separator
    if found is None or ".." in found[0]:
        raise ConfigError(f"{str(path)!r:.200} is no address of a run on the Hub; accepted: {ACCEPTED}", key="run")
    return Address(found[1], found[2])


def require_repo(repo: str) -> str:
    """Refuse what is no name of a repo.

    Raises:
        ConfigError: it is not.
    """
    if not _REPO.fullmatch(repo) or ".." in repo:
        refuse("--hub", repo, "OWNER/NAME", "hub")
    return repo


def local_folder(path: str | Path) -> Path:
    """Return the folder that a path means; of an address on the Hub, the one that its run is downloaded to.

    Raises:
        ConfigError: see `download`.
    """
    return download(parse_address(path)) if is_address(path) else as_path("path", path)


def pinned(path: str | Path) -> str:
    """Return the address of the commit that an address means now."""
    address = parse_address(path)
    return str(address._replace(revision=download(address).name))


def is_downloaded(folder: Path) -> bool:
    """Whether a folder was downloaded from the Hub: it is a copy, in which nothing may be changed."""
    return (folder.absolute().parent / _FROM_HUB).exists()


# --- Down ------------------------------------------------------------------------------------------------------------


def download(address: Address) -> Path:
    """Download a run, unless it is there, to `marl_sb3/` in the cache of the Hub (`HF_HOME`); a folder per commit.

    Raises:
        ConfigError: there is no such repo or revision, it holds no policies as safetensors, it is too large, or the Hub
            cannot be reached. A commit that was downloaded before needs no network.
    """
    require_extra(str(address), "hub")
    from huggingface_hub import constants

    runs = Path(constants.HF_HOME, "marl_sb3", address.repo.replace("/", "--"))
    if _COMMIT.fullmatch(address.revision or "") and (runs / str(address.revision)).is_dir():
        return runs / str(address.revision)
    api = _api()
    with _asking(str(address)):
        info = api.model_info(address.repo, revision=address.revision, files_metadata=True)
    if not isinstance(info.sha, str) or not _COMMIT.fullmatch(info.sha):
        raise ConfigError(f"{address}: the Hub names no commit", key="run")
    target = runs / str(info.sha)
    with path_is_usable("cannot write to the cache of the Hub", target, "run"):
        runs.mkdir(parents=True, exist_ok=True)
        (runs / _FROM_HUB).touch()
        with FileLock(runs / ".lock"):
            if not target.is_dir():
                files = _files_of(address, [(each.rfilename, each.size) for each in info.siblings or ()])
                _require_room(address, sum(files.values()), runs)
                with replaced_folder(target) as fresh:
                    _fetch(api, address._replace(revision=target.name), files, fresh)
    return target


def _files_of(address: Address, listed: Sequence[tuple[Any, Any]]) -> dict[str, int]:
    """Return the files of a run with their sizes, as the Hub lists them; names that lead elsewhere are none of them.

    Args:
        listed: the name and the size of each file, which the client of the Hub has not checked.

    Raises:
        ConfigError: it is not a run.
    """
    sizes = {name: size for name, size in listed if isinstance(name, str)}
    files = {name: size for name, size in sizes.items() if _FILE.fullmatch(name) and size is not None}
    for name, size in files.items():
        if type(size) is not int or size < 0:
            words = f"the Hub lists {name} with the size {size!r:.40}"
            raise ConfigError(f"{address}: {words}; accepted: a number of bytes", key="run")
    if _CONFIG not in files or not any(name.endswith("/manifest.json") for name in files):
        words = f"{address} holds no run of marl_sb3: {_CONFIG}, and checkpoints as JSON and safetensors"
        pickles = [name for name in sizes if PurePosixPath(name).suffix in _OF_PICKLES]
        if pickles:
            words += f"; it has {pickles[0]!r:.80}, which may hold pickles, and these are never read from the Hub"
        raise ConfigError(f"{words}; accepted: what `export --hub` has pushed", key="run")
    if len(files) > _MOST_FILES:
        raise ConfigError(f"{address} has {len(files)} files; accepted: at most {_MOST_FILES}", key="run")
    return files


def _require_room(address: Address, size: int, folder: Path) -> None:
    most = min(_MOST_BYTES, shutil.disk_usage(folder).free)
    if size > most:
        words = f"{address} has {size} bytes; accepted: at most {most}, as the disk and marl_sb3 allow"
        raise ConfigError(f"{words}; a larger run is one to download by hand, as a folder", key="run")


def _fetch(api: HfApi, address: Address, files: Mapping[str, int], folder: Path) -> None:
    for name, size in files.items():
        with _asking(f"{address}, {name}"):
            api.hf_hub_download(address.repo, name, revision=address.revision, local_dir=folder)
        file = folder / name
        if not is_regular(file) or file.stat().st_size != size:
            raise ConfigError(f"{address}: {name} did not come with the {size} bytes that the Hub lists", key="run")
    remove_folder(folder / ".cache")  # where huggingface_hub notes what it has downloaded


# --- Up --------------------------------------------------------------------------------------------------------------


def push(folder: Path, repo: str, message: str, *, private: bool = False, revision: str | None = None) -> Address:
    """Push a run folder to a repo, as one commit that replaces the run that was there; other files stay.

    Args:
        folder: with the files of a run on the Hub, and no others.
        repo: OWNER/NAME; made if it does not exist.
        message: of the commit.
        private: whether nobody else may read the repo.
        revision: a branch, which is made if it does not exist; None: `main`.

    Returns:
        The address of the commit.

    Raises:
        ConfigError: there is no token that may write, the Hub cannot be reached, or an existing repo is public and
            `private` is asked for.
    """
    require_extra("--hub", "hub")
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    api, files = _api(), sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]
    with _asking(repo, "hub"):
        api.create_repo(repo, private=private or None, exist_ok=True)
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)
        info = api.model_info(repo, revision=revision)
        if private and not info.private:
            raise ConfigError(f"{repo} exists and is public; accepted: without --private, or another repo", key="hub")
        former = [each.rfilename for each in info.siblings or ()]
        commit = api.create_commit(
            repo,
            operations=[
                *(CommitOperationAdd(name, path) for name, path in zip(names, files, strict=True)),
                *(CommitOperationDelete(name) for name in former if _FILE.fullmatch(name) and name not in names),
            ],
            commit_message=message,
            revision=revision,
            parent_commit=info.sha,
        )
    return Address(repo, commit.oid)


# --- The client of the Hub -------------------------------------------------------------------------------------------


def _api() -> HfApi:
    """The client, which finds the token: `HF_TOKEN`, or that of `hf auth login`."""
    from huggingface_hub import HfApi

    endpoint = os.environ.get("HF_ENDPOINT") or None
    return HfApi(endpoint=endpoint, library_name="marl_sb3", library_version=marl_sb3.__version__)


@contextmanager
def _asking(about: str, key: str = "run") -> Iterator[None]:
    """Say in words what the Hub has refused; errors of a full or failing disk stay as they are."""
    try:
        yield
    except MarlSb3Error:
        raise
    except Exception as error:  # of the client, of its HTTP and of its storage: they have no class in common
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ConfigError(f"{about}: {_reason(error)}", key=key) from error


def _reason(error: Any) -> str:
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.RevisionNotFoundError):
        return "the repo has no such revision; accepted: a branch, a tag or a commit of it"
    if isinstance(error, errors.GatedRepoError):
        return "its owner decides who may read it; accepted: ask on its page, then log in by `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
        token = "`hf auth login`, or HF_TOKEN, with a token that may do this"
        return f"there is no such repo, or it is not yours to use; accepted: a repo that exists, and {token}"
    said = " ".join(str(error).split())
    return f"the Hub cannot be asked: {said[:300] or type(error).__name__}"


# --- The store -------------------------------------------------------------------------------------------------------


class HubStore:
    """The store of checkpoints on the Hub, which are only read. See `marl_sb3.doors.Store`."""

    def takes(self, path: str | Path) -> bool:
        """See `Store.takes`."""
        return is_address(path)

    def folder(self, path: str | Path) -> Path:
        """See `Store.folder`: the one that the run is downloaded to."""
        return local_folder(path)

    def place(self, path: str | Path) -> Path:
        """See `Store.place`; there is none."""
        words = f"{path} is on the Hub, where algorithms are not saved"
        raise ConfigError(f"{words}; accepted: a folder here, or `export RUN --hub` for a run", key="path")

    def write(self, place: Path, state: State, tensors: Tensors, about: Mapping[str, Any]) -> None:
        """See `Store.write`; `place` has refused."""
        self.place(place)

    def read(self, path: str | Path, which: str | None, use: Callable[[Checkpoint], T]) -> T:
        """See `Store.read`."""
        return STORES["folder"].read(self.folder(path), which, use)


STORE: Store = HubStore()
