"""Read datasets of strangers: a table of what they may hold, and every way to read them, in a process with limits.

    python tests/hostile/data_sets.py OUTPUT [--commands]

Writes a line of JSON for each case and way: what came of it, and the message. With `--commands`, the ways are those of
the command line; a command may have ended with 0 or 2, a function with nothing or with `ConfigError`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from marl_sb3.core.state.state import StateReader
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.data.dataset import (
    RecordedEpisode,
    joint_episodes,
    read_data,
    read_policy_data,
    recorded_policies,
)
from marl_sb3.extensions.data.store import EpisodeStore, PolicyKind

sys.path.append(str(Path(__file__).parents[1]))  # where this is a command

from odd_files import PUT, content, in_time, put

MEMORY = 2**30  # bytes of address space that reading may need beyond those that the process has
SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----"
SHARD, MAIN, METADATA, RECORDING = "episodes-00000000.hdf5", "main_data.hdf5", "metadata.json", "recording.json"
AGENTS = ("agent1", "agent2")
STEPS = 4


# --- A valid recording -----------------------------------------------------------------------------------------------


def kind() -> PolicyKind:
    env = ArenaEnv()
    return PolicyKind(AGENTS, env.observation_space("agent1"), env.action_space("agent1"))


def make_recording(folder: Path, n_episodes: int = 3) -> None:
    """Joint episodes of the arena's spaces by a policy `shared`."""
    store = EpisodeStore(folder, {"shared": kind()}, "arena")
    for number in range(n_episodes):
        store.add([_episode(number, agent, kind()) for agent in AGENTS])
    store.flush()


def _episode(number: int, agent: str, of: PolicyKind) -> RecordedEpisode:
    of.observation_space.seed(number)
    of.action_space.seed(number)
    seen = np.stack([np.asarray(of.observation_space.sample()) for _ in range(STEPS + 1)])
    acts = np.stack([np.asarray(of.action_space.sample()) for _ in range(STEPS)])
    logs = np.full(STEPS, -1.0, np.float32)
    ids = ("shared", agent, f"{number:08d}", 0, 7)
    return RecordedEpisode(
        *ids, seen, acts, np.ones(STEPS), terminated=True, truncated=False, log_probs=logs, values=logs
    )


# --- What strangers make of it ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A hostile recording."""

    spoil: Callable[[Path, Path], object]  # changes a valid one, given its folder and one outside
    words: str | None  # a pattern that is in the messages of the ways that refuse it; None: all read it
    by: str = "episodes"  # which ways those are, of `REFUSING`; the others may read it


def _put(kind_: str, name: str) -> Callable[[Path, Path], object]:
    return lambda folder, outside: put(kind_, folder / name, outside)


def _text(name: str, text: str | bytes) -> Callable[[Path, Path], object]:
    content_ = text.encode() if isinstance(text, str) else text
    return lambda folder, _: (folder / name).write_bytes(content_)


def _json(name: str, **changes: Any) -> Callable[[Path, Path], object]:
    def spoil(folder: Path, _: Path) -> None:
        tree = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**tree, **changes}))

    return spoil


def _hdf5(change: Callable[[Any, Path], object], name: str = SHARD) -> Callable[[Path, Path], object]:
    """Change an HDF5 file; the first argument is the group of the first episode, or the main file itself."""

    def spoil(folder: Path, outside: Path) -> None:
        with h5py.File(folder / DATA / name, "r+") as file:
            change(file if name == MAIN else file["episode_0"], outside)

    return spoil


def _instead(path: str, make: Callable[[Any, str, Path], object]) -> Callable[[Path, Path], object]:
    """Make something else in the place of a part of the first episode."""

    def change(episode: Any, outside: Path) -> None:
        del episode[path]
        make(episode, path, outside)

    return _hdf5(change)


def _external_storage(episode: Any, path: str, outside: Path) -> None:
    episode.create_dataset(path, (STEPS,), "u1", external=[(str(outside / "secret"), 0, h5py.h5f.UNLIMITED)])


def _virtual(episode: Any, path: str, outside: Path) -> None:
    layout = h5py.VirtualLayout((STEPS,), "u1")
    layout[:] = h5py.VirtualSource(str(outside / "other.hdf5"), "values", (STEPS,))
    episode.create_virtual_dataset(path, layout)


def _to(file: str, inner: str = "episode_0") -> Callable[[Path, Path], object]:
    """An external link in the place of an episode; `{}` is the folder outside."""

    def change(main: Any, outside: Path) -> None:
        del main["episode_0"]
        main["episode_0"] = h5py.ExternalLink(file.format(outside), inner)

    return _hdf5(change, MAIN)


def _link_in_shard(episode: Any, path: str, outside: Path) -> None:
    episode[path] = h5py.ExternalLink(str(outside / "other.hdf5"), "values")


def _soft_through_external(episode: Any, path: str, outside: Path) -> None:
    episode["away"] = h5py.ExternalLink(str(outside / "other.hdf5"), "/")
    episode[path] = h5py.SoftLink("/episode_0/away/values")


def _soft_loop(episode: Any, path: str, _: Path) -> None:
    episode["there"] = h5py.SoftLink(f"/episode_0/{path}")
    episode[path] = h5py.SoftLink("/episode_0/there")


def _cycle(episode: Any, _: Path) -> None:
    episode["infos/infos"] = episode["infos"]
    episode["observations_too"] = episode


def _unstored(path: str, shape: tuple[int, ...], dtype: Any = "f4", **more: Any) -> Callable[[Path, Path], object]:
    """An array of which nothing is stored: it takes no room in the file."""
    return _instead(path, lambda episode, name, _: episode.create_dataset(name, shape, dtype, **more))


def _bomb(path: str, shape: tuple[int, ...]) -> Callable[[Path, Path], object]:
    def make(episode: Any, name: str, _: Path) -> None:
        made = episode.create_dataset(name, shape, "f8", chunks=shape, compression="gzip")
        made.id.write_direct_chunk((0,), bytes(64))

    return _instead(path, make)


def _other_type(path: str, value: Any, dtype: Any = None) -> Callable[[Path, Path], object]:
    return _instead(path, lambda episode, name, _: episode.create_dataset(name, data=value, dtype=dtype))


def _opaque(episode: Any, path: str, _: Path) -> None:
    """Bytes with a tag that names the type of Python's pointers."""
    kind_ = h5py.h5t.create(h5py.h5t.OPAQUE, 8)
    kind_.set_tag(b"NUMPY:O")
    h5py.h5d.create(episode.id, path.encode(), kind_, h5py.h5s.create_simple((STEPS,)))


def _long_text(episode: Any, path: str, _: Path) -> None:
    kind_ = h5py.h5t.C_S1.copy()
    kind_.set_size(2**31 - 1)
    h5py.h5d.create(episode.id, path.encode(), kind_, h5py.h5s.create(h5py.h5s.SCALAR))


def _space(name: str = "observation_space", **plain: Any) -> Callable[[Path, Path], object]:
    return _json(f"{DATA}/{METADATA}", **{name: json.dumps(plain)})


def _cut(part: float) -> Callable[[Path, Path], object]:
    def spoil(folder: Path, _: Path) -> None:
        file = folder / DATA / SHARD
        file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])

    return spoil


def _sparse(folder: Path, _: Path) -> None:
    with (folder / DATA / METADATA).open("wb") as file:
        file.truncate(2**36)


def _deep() -> str:
    return '{"type": "Tuple", "subspaces": [' * 5000 + "]}" * 5000


DATA = "shared/data"
_AT = re.escape(f"{SHARD}/episode_0/")
_LINKS = {  # what is in the place of a file or a folder, and a file that names it
    RECORDING: ("a link to a file", "a pipe", "a link to a device", "a socket"),
    f"{DATA}/{METADATA}": ("a link to a file", "a pipe", "a link to what is not there"),
    f"{DATA}/{MAIN}": ("a link to a file", "a pipe", "a link to a device"),
    f"{DATA}/{SHARD}": ("a link to a file", "a pipe", "a link to what is not there"),
    "shared": ("a link to a folder", "a pipe"),
    DATA: ("a link to a folder", "a link to what is not there"),
}
CASES: dict[str, Case] = {
    "valid": Case(lambda *_: None, None),
    **{
        f"{each} as {name}": Case(_put(each, name), "it is a", "recording" if "/" not in name else "dataset")
        for name, kinds in _LINKS.items()
        for each in kinds
    },
    # Files
    "an empty main file": Case(_text(f"{DATA}/{MAIN}", b""), MAIN.replace(".", r"\.") + "|file signature"),
    "a text as main file": Case(_text(f"{DATA}/{MAIN}", "x" * 9000), "signature"),
    "half a shard": Case(_cut(0.5), "truncated|damaged"),
    "a shard of 100 bytes": Case(_cut(100 / 30000), "damaged"),
    "metadata of 64 GB": Case(_sparse, "metadata.json has 68719476736 bytes", "dataset"),
    "metadata nested too deep": Case(_text(f"{DATA}/{METADATA}", "[" * 10**5), "RecursionError", "dataset"),
    "metadata that is a list": Case(_text(f"{DATA}/{METADATA}", "[]"), "damaged", "dataset"),
    "metadata of 10**18 episodes": Case(
        _json(f"{DATA}/{METADATA}", total_episodes=10**18), "total_episodes 1000000000000000000", "dataset"),
    "metadata of 10**18 episodes and steps": Case(
        _json(f"{DATA}/{METADATA}", total_episodes=10**18, total_steps=10**18), "total_steps 10+", "dataset"),
    "metadata of 10**12 episodes and steps": Case(
        _json(f"{DATA}/{METADATA}", total_episodes=10**12, total_steps=10**12), "the free memory allows", "memory"),
    "metadata with less steps than there are": Case(
        _json(f"{DATA}/{METADATA}", total_steps=10), "episode_2 has 4 actions; metadata.json leaves 1 to 2"
    ),
    "metadata of a long format": Case(
        _json(f"{DATA}/{METADATA}", data_format="x" * 20000), "data_format 'x", "dataset"),
    "metadata of a policy that is no text": Case(
        _json(f"{DATA}/{METADATA}", marl_sb3={"policy_id": [1], "agents": []}), "which is of type list", "dataset"),
    "metadata of another format": Case(_json(f"{DATA}/{METADATA}", data_format="arrow"), "data_format", "dataset"),
    "a recording of a long format": Case(_json(RECORDING, format=[0] * 2000), "the format .0, 0", "recording"),
    "a recording of a folder above": Case(_json(RECORDING, episodes={"..": 6}), r"a folder is .*; acc", "recording"),
    "a recording of more episodes": Case(_json(RECORDING, episodes={"shared": 10**6}), "says 1000000", "recording"),
    # Spaces
    "a space of 10**12 numbers": Case(
        _space(type="Box", dtype="float32", shape=[10**12], low=0, high=1), "with low of shape", "dataset"),
    "a space whose dtype is an array": Case(
        _space(type="Box", dtype="(1000000000,)f4", shape=[1], low=[0], high=[1]), "a space of dtype", "dataset"),
    "a space of long texts": Case(
        _space(type="MultiDiscrete", dtype="U1000000000", nvec=[2], start=[0]), "a space of dtype", "dataset"),
    "a space of 10**9 flags": Case(_space("action_space", type="MultiBinary", n=10**9), "accepted|free memory"),
    "a space nested too deep": Case(
        _json(f"{DATA}/{METADATA}", observation_space=_deep()), "RecursionError", "dataset"),
    # Values elsewhere
    "external storage": Case(_instead("rewards", _external_storage), f"{_AT}rewards has its values in another file"),
    "external storage of an info": Case(
        _instead("infos/log_prob", _external_storage), f"{_AT}infos/log_prob has its values in another file"
    ),
    "a virtual dataset": Case(_instead("rewards", _virtual), f"{_AT}rewards has its values in another file"),
    "an absolute link": Case(_to("{}/other.hdf5"), f"{MAIN}/episode_0 is a link to 'episode_0' in "),
    "a link above the folder": Case(_to("../../../outside/other.hdf5"), f"{MAIN}/episode_0 is a link"),
    "a link to a pipe": Case(_to("{}/pipe"), f"{MAIN}/episode_0 is a link"),
    "a link to another part of a shard": Case(_to(SHARD, "episode_1/infos"), f"{MAIN}/episode_0 is a link to 'epi"),
    "a link to a shard that is not there": Case(_to("episodes-00000009.hdf5"), "episodes-00000009.hdf5: No such file"),
    "a link in a shard": Case(_instead("actions", _link_in_shard), f"{_AT}actions is a link"),
    "a soft link": Case(
        _instead("actions", lambda e, n, _: e.__setitem__(n, h5py.SoftLink("/episode_1/actions"))),
        f"{_AT}actions is a link",
    ),
    "a soft link through another file": Case(_instead("actions", _soft_through_external), f"{_AT}actions is a link"),
    "soft links in a circle": Case(_instead("actions", _soft_loop), f"{_AT}actions is a link"),
    "groups in a circle": Case(_hdf5(_cycle), None),
    # Types
    "a group for an array": Case(_instead("rewards", lambda e, n, _: e.create_group(n)), f"{_AT}rewards is no dataset"),
    "an array for a group": Case(_other_type("infos", [1]), f"{_AT}infos is no group"),
    "a type for an array": Case(
        _instead("actions", lambda e, n, _: e.__setitem__(n, np.dtype("f8"))), f"{_AT}actions is no dataset"
    ),
    "texts": Case(_other_type("actions", ["x"] * STEPS), f"{_AT}actions has no numbers"),
    "records": Case(_other_type("actions", np.zeros(STEPS, "i4,f4")), f"{_AT}actions has no numbers"),
    "references": Case(
        _other_type("actions", [h5py.Reference()] * STEPS, h5py.ref_dtype), f"{_AT}actions has no numbers"
    ),
    "arrays in an array": Case(
        _unstored("actions", (STEPS,), h5py.vlen_dtype(np.int64)), f"{_AT}actions has no numbers"
    ),
    "pointers": Case(_instead("actions", _opaque), f"{_AT}actions has no numbers"),
    "complex numbers": Case(_other_type("rewards", np.ones(STEPS, complex)), f"{_AT}rewards has no numbers"),
    "a name that a terminal obeys": Case(
        _other_type("infos/agent", "\x1b[31mred"), f"{_AT}infos/agent is a text with unprintable"),
    "a number for a name": Case(_other_type("infos/agent", 1), f"{_AT}infos/agent is not one text"),
    # Sizes
    "a huge info": Case(_unstored("infos/log_prob", (300_000_000,)), f"{_AT}infos/log_prob has values of shape"),
    "a huge info of another name": Case(_unstored("infos/value", (STEPS, 10**12)), f"{_AT}infos/value has values of"),
    "huge rewards": Case(_unstored("rewards", (10**15,)), "episode_0 has 1000000000000000 actions"),
    "huge observations": Case(_unstored("observations", (STEPS + 1, 10**9)), f"{_AT}observations has values of shape"),
    "many dimensions": Case(_unstored("actions", (1,) * 32), f"{_AT}actions has values of shape"),
    "no actions": Case(_unstored("rewards", (0,)), "episode_0 has 0 actions"),
    "a huge chunk": Case(_unstored("rewards", (STEPS,), chunks=(2**28,), maxshape=(None,)), None),
    "a compressed bomb": Case(_bomb("rewards", (STEPS,)), f"{_AT}rewards is compressed"),
    "a long name": Case(_instead("infos/agent", _long_text), f"{_AT}infos/agent is a text of another length"),
}  # fmt: skip


# --- The ways to read it ---------------------------------------------------------------------------------------------


def _policy(folder: Path) -> None:
    for each in read_policy_data(folder / "shared").episodes:
        assert SECRET[:STEPS] not in np.asarray(each.rewards, np.uint8).tobytes()


def _continued(folder: Path) -> None:
    """As `train --resume --record` does: forget what a checkpoint does not know, and write on."""
    store = EpisodeStore(folder, {"shared": kind()}, "arena", continues=True)
    store.go_back_to(StateReader({"joint_episodes": 2, "episodes": {"shared": 4}, "env_steps": {"shared": 16}}))
    store.add([_episode(2, agent, kind()) for agent in AGENTS])
    store.flush()


FUNCTIONS: dict[str, Callable[[Path], object]] = {
    "read_policy_data": _policy,
    "joint_episodes": lambda folder: [*joint_episodes(folder)],
    "recorded_policies": recorded_policies,
    "imitate, imitation_data, replay_data, evaluate --on": read_data,
    "--resume --record": _continued,  # the last one, which writes
}
_LEARNING = ("imitate, imitation_data, replay_data, evaluate --on",)
REFUSING = {  # what a case is about -> the ways that must refuse it
    "episodes": ("read_policy_data", "joint_episodes", *_LEARNING),
    "dataset": tuple(FUNCTIONS),
    "recording": ("joint_episodes", "recorded_policies", *_LEARNING, "--resume --record"),  # not of its part alone
    "memory": _LEARNING,
}
_ANEW = ("--run-dir", "new", "--seed", "1", "--quiet", "--set", "n_steps=20", "--n-envs", "2")


def commands(folder: Path) -> dict[str, Callable[[Path], object]]:
    """The same on the command line; `folder` is where a trained run is."""
    from marl_sb3.evaluate import main as evaluate
    from marl_sb3.imitate import main as imitate
    from marl_sb3.train import main as train

    if not (folder / "run").exists():
        assert train(["arena", "--run-dir", str(folder / "run"), *_ANEW[2:], "--timesteps", "40"]) == 0
    learned = ("arena", "--timesteps", "40", *_ANEW)
    return {
        "imitate": lambda data: imitate([str(data), "--env", "arena", "--epochs", "1", *_ANEW[:5]]),
        "imitation_data": lambda data: train([*learned, "--set", f"imitation_data={data}"]),
        "replay_data": lambda data: train([*learned, "--algo", "dqn", "--set", f"replay_data={data}"]),
        "evaluate --on": lambda data: evaluate([str(folder / "run"), "--on", str(data)]),
    }


def attempt(read: Callable[[Path], object], folder: Path) -> tuple[str, str]:
    """Read a recording in one way; returns what came of it, and the message."""
    said = io.StringIO()
    try:
        with in_time(), contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = read(folder)
    except ConfigError as error:
        return "refused", str(error)
    except BaseException:
        return "wrong", traceback.format_exc(limit=-4)
    if isinstance(code, int) and code not in (0, 2):
        return "wrong", f"exit code {code}: {said.getvalue()}"
    return ("refused" if code == 2 else "read"), said.getvalue()


def run(case: str, place: Path, by_command: bool) -> list[dict[str, str]]:
    """Build a case, and read it in all ways."""
    folder, outside = place / "episodes", place / "outside"
    shutil.copytree(place / "valid", folder)
    CASES[case].spoil(folder, outside)
    before, found = content(outside), []
    for way, read in (commands(place) if by_command else FUNCTIONS).items():
        result, words = attempt(read, folder)
        if content(outside) != before:
            result, words = "wrong", "something outside has changed"
        shutil.rmtree(place / "new", ignore_errors=True)
        found.append({"case": case, "way": way, "result": result, "words": words})
    shutil.rmtree(folder)
    return found


def make_outside(folder: Path) -> None:
    """A secret, another HDF5 file, a pipe; and a whole recording, to which folders may be linked."""
    make_recording(folder / "recording")
    shutil.copytree(folder / "recording" / "shared", folder / "folder")
    (folder / "secret").write_bytes(SECRET)
    (folder / "file").write_bytes((folder / "folder/data" / METADATA).read_bytes())
    with h5py.File(folder / "other.hdf5", "w") as file:
        file["values"] = np.frombuffer(SECRET[:STEPS], np.uint8)
    PUT["a pipe"](folder / "pipe", folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--commands", action="store_true")
    arguments = parser.parse_args()
    output = arguments.output.absolute()
    with tempfile.TemporaryDirectory(prefix="data-sets-") as name, output.open("w") as lines:
        place = Path(name).resolve()
        os.chdir(place)
        make_recording(place / "valid")
        make_outside(place / "outside")
        run("valid", place, arguments.commands)  # imports what it needs
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for case in CASES:
            for found in run(case, place, arguments.commands):
                print(json.dumps(found), file=lines, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
