"""Throw bytes at the readers of what strangers send, guided by the code that they reach (Atheris, libFuzzer).

    pip install atheris
    python tests/hostile/guided.py --inputs 10000000 [--seconds S] [TARGET ...]

Each target is a reader: of messages to servers, of YAML files of settings, of checkpoints, of data sets. It may return,
or raise an error of marl_sb3 with a message that fits a terminal. Anything else is a finding: another exception, what
an audit hook sees (code, processes, sockets, writes), an input that takes 5 seconds or 4 GB. It is kept in a file.

Inputs are shared out by what they cost: a message takes microseconds, a file of HDF5 a millisecond. Without Atheris,
`--blind` changes the seeds by chance; the test suite does that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SHARES = {"messages": 0.88, "yaml": 0.01, "checkpoints": 0.1, "metadata": 0.005, "episodes": 0.005}  # of the inputs
_SECONDS, _MEGABYTES, _MOST_BYTES = 5, 4096, 32768  # of one input
_ODD_CHARACTERS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")
_FOUND = re.compile(r"Test unit written to (\S+)")
_DONE = re.compile(r"Done (\d+) runs in (\d+) second")
_PULSE = re.compile(r"^#(\d+)\s+\S+\s+cov: (\d+)", re.MULTILINE)

Reader = Callable[[bytes], object]


class HarmError(Exception):
    """A reader did what it must not do."""


# --- Readers ---------------------------------------------------------------------------------------------------------


def messages(_: Path) -> tuple[Reader, list[bytes]]:
    """Requests of `serve`, reports of clients of `train --external`, commands of viewers; the first byte says which."""
    from bases import ManySpaces

    from marl_sb3 import MaskablePPO, MultiAgentAlgorithm, PolicySpec, RecurrentPPO, make_vec_env
    from marl_sb3.evaluation.session import ViewerCommand
    from marl_sb3.tools.serving.api import read_request
    from marl_sb3.tools.serving.external import ExternalApi, StepMessage
    from marl_sb3.tools.serving.guard import Limits, read_message
    from marl_sb3.tools.serving.predictor import ServedPolicies

    policies = {
        "walker": PolicySpec(RecurrentPPO, "MultiInputLstmPolicy", policy_kwargs={"lstm_hidden_size": 4}),
        "chooser": PolicySpec(MaskablePPO, "MultiInputPolicy"),
    }
    env = make_vec_env(ManySpaces, n_envs=1, seed=0)
    served = ServedPolicies(
        MultiAgentAlgorithm(env, policies, n_steps=8, batch_size=8, seed=0).bundle(), 0, b"", "", 0.0, 0.0
    )
    seen_by_all = {
        "kind": "Dict",
        "spaces": {
            "place": {"kind": "Box", "shape": [2]},
            "kind": {"kind": "Discrete", "n": 5},
            "flags": {"kind": "MultiBinary", "n": 3},
        },
    }
    actions = {"walker": {"kind": "Box", "shape": [2]}, "chooser": {"kind": "MultiDiscrete", "nvec": [2, 3]}}
    agents = {agent: {"observation_space": seen_by_all, "action_space": space} for agent, space in actions.items()}
    own = {agent: agent for agent in agents}
    external = ExternalApi(make_vec_env("external", n_envs=2, agents=agents), own, ["walker"], Limits())
    readers: list[Reader] = [
        lambda body: read_request(body, served, Limits()),
        lambda body: external._report(read_message(body, StepMessage, "the body is no report of a step")),
        lambda body: read_message(body, ViewerCommand, "no command"),
    ]
    seen = {"place": [0.5, -1e3], "kind": 4, "flags": [0, 1, 1]}
    state = [[[0.0] * 4]] * 4
    requests = [
        {"observations": {"walker": seen}, "deterministic": False, "states": {"walker": state}},
        {"observations": {"chooser": seen}, "action_masks": {"chooser": [True] * 5}, "return_values": True},
        {"observations": {"chooser": {"observation": seen, "action_mask": [1, 0, 1, 0, 1]}}, "return_log_probs": True},
        {"observations": {"walker": {key: [part] * 2 for key, part in seen.items()}}, "batch": 2,
         "rewards": {"walker": [1, 2]}, "episode_starts": {"walker": [True, False]}},
    ]  # fmt: skip
    reports = [
        {"observations": {"walker": seen, "chooser": seen}, "number": 1},
        {"observations": {"walker": seen}, "rewards": {"walker": 1.5}, "terminated": {"chooser": True}, "truncated": {},
         "infos": {"walker": {"x": [1, {"y": None}]}}, "actions": {"walker": [0.1, 2]}, "log_probs": {"walker": -1.0},
         "action_masks": {"chooser": [True, False]}},
    ]  # fmt: skip
    commands = [
        {"do": "act", "agent": "walker", "action": [0.5, 1]},
        {"do": "begin", "seed": 3, "deterministic": None, "checkpoint": "best"},
        {"do": "pace", "steps_per_s": 30.0, "on": False},
    ]
    seeds = [
        bytes([place]) + json.dumps(each).encode()
        for place, all_ in enumerate((requests, reports, commands))
        for each in all_
    ]
    return lambda data: readers[data[0] % len(readers)](data[1:]) if data else None, seeds


def settings(folder: Path) -> tuple[Reader, list[bytes]]:
    """Files of settings, as after `--hparams` and in run folders."""
    from marl_sb3.extensions.fast.builtin import ALGORITHMS
    from marl_sb3.runs.files import preset_path, to_yaml
    from marl_sb3.runs.settings import load_config

    file = folder / "settings.yml"

    def read(data: bytes) -> None:
        file.write_bytes(data)
        load_config(None, hparams=file)

    presets = [preset_path(algo).read_bytes() for algo in ("a2c", "tqc")]
    whole = [to_yaml(load_config("arena", algo, settings={"agent1.gamma": 0.5})).encode() for algo in ("ppo", "dqn")]
    odd = b"arena: {<<: [{seed: 1}], env_wrapper: [{a.b: {c: 3}}], policies: {p.1: {agents: [agent1]}}}"
    for info in ALGORITHMS.values():
        assert info.algorithm_class  # imported now: an audit hook takes a later import for harm
    return read, [*presets, *whole, odd, b"a: &a [1, *a]", b"arena: {algo: !!python/name:os.system x}"]


def checkpoints(folder: Path) -> tuple[Reader, list[bytes]]:
    """The state of a checkpoint into an algorithm, a file of tensors, a manifest; the first byte says which."""
    import hashlib

    from bases import BASES
    from checkpoint_source import read_files

    from marl_sb3.core.learners.spec import PolicySpec
    from marl_sb3.core.state.checkpoint import Checkpoint
    from marl_sb3.core.state.state import StateReader
    from marl_sb3.extensions.store.checkpoint_format import read_checkpoint, read_manifest, state_from_json
    from marl_sb3.extensions.store.load import space_from_plain
    from marl_sb3.extensions.store.tensor_file import StoredTensors

    base = next(each for each in BASES if each.name == "env with a state of its own")
    files = read_files(base.save(folder / "source"))
    found = read_checkpoint(folder / "source")
    algorithm = base.build()
    arrays = StoredTensors(folder / "source" / "arrays.safetensors", *_entry(files, "arrays.safetensors")).load()
    (folder / "manifest").mkdir()

    def state(data: bytes) -> None:
        read = state_from_json(data, arrays)
        algorithm.set_state(Checkpoint(folder, found.about, read, found.tensors))

    def tensors(data: bytes) -> None:
        path = folder / "fuzzed.safetensors"
        path.write_bytes(data)
        stored = StoredTensors(path, len(data), hashlib.sha256(data).hexdigest())
        stored.verify()
        stored.load()

    def manifest(data: bytes) -> None:
        (folder / "manifest" / "manifest.json").write_bytes(data)
        read_manifest(folder / "manifest")

    def parts(data: bytes) -> None:
        plain = StateReader(state_from_json(data, {}), "state")
        for name in plain.names():
            space_from_plain(plain.fields(name)) if name.startswith("space") else PolicySpec.from_plain(
                plain.fields(name)
            )

    readers = [state, tensors, manifest, parts]
    spec = {"algorithm": "ppo", "policy": "MlpPolicy", "hyperparameters": {"policy_kwargs": {"net_arch": [4]}},
            "processing": {"frame_stack": 2}}  # fmt: skip
    box = {
        "kind": "Dict",
        "spaces": [["a", {"kind": "Box", "dtype": "float32", "shape": [2], "low": 0, "high": "inf"}]],
    }
    small = [bytes(data) for name, data in files.items() if name.endswith(".safetensors")]
    seeds = [(0, files["state.json"]), *((1, data) for data in small), (2, files["manifest.json"])]
    seeds += [(3, json.dumps({"spec": spec}).encode()), (3, json.dumps({"space": box}).encode())]
    read = lambda data: readers[data[0] % len(readers)](data[1:]) if data else None  # noqa: E731 - one of four
    return read, [bytes([place]) + bytes(data) for place, data in seeds]


def metadata(folder: Path) -> tuple[Reader, list[bytes]]:
    """What describes recorded episodes."""
    from data_sets import METADATA

    return _recording(folder, METADATA)


def episodes(folder: Path) -> tuple[Reader, list[bytes]]:
    """Recorded episodes in an HDF5 file, whose inside Atheris cannot see."""
    from data_sets import SHARD

    return _recording(folder, SHARD)


def _recording(folder: Path, name: str) -> tuple[Reader, list[bytes]]:
    from data_sets import make_recording

    from marl_sb3.extensions.data.dataset import read_policy_data

    make_recording(folder, 1)
    file = folder / "shared" / "data" / name

    def read(data: bytes) -> None:
        file.write_bytes(data)
        for episode in read_policy_data(folder / "shared").episodes:
            assert episode.rewards is not None

    return read, [file.read_bytes()]


def _entry(files: Any, name: str) -> tuple[int, str]:
    import hashlib

    return len(files[name]), hashlib.sha256(files[name]).hexdigest()


TARGETS: dict[str, Callable[[Path], tuple[Reader, list[bytes]]]] = {
    "messages": messages,
    "yaml": settings,
    "checkpoints": checkpoints,
    "metadata": metadata,
    "episodes": episodes,
}


# --- One input -------------------------------------------------------------------------------------------------------


def guarded(read: Reader, folder: Path) -> Reader:
    """Return the reader with what it must not do as an exception."""
    from audit import watched

    from marl_sb3.errors import MarlSb3Error

    def one(data: bytes) -> None:
        with watched(folder) as seen:
            try:
                read(data)
            except MarlSb3Error as error:
                if len(message := str(error)) > 4000 or _ODD_CHARACTERS.search(message):
                    raise HarmError(f"a message of {len(message)} characters: {message[:300]!r}") from error
        if seen:
            raise HarmError(f"the audit hook saw {seen[:5]}")

    return one


def changed(data: bytes, rng: random.Random) -> bytes:
    """Change bytes by chance: flips, cuts, repeats and pieces that matter."""
    mutant = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, kind = rng.randrange(len(mutant) + 1), rng.randrange(5)
        if kind == 0 and mutant:
            mutant[min(at, len(mutant) - 1)] = rng.randrange(256)
        elif kind == 1:
            del mutant[at : at + rng.choice((1, 4, 64))]
        elif kind == 2:
            mutant[at:at] = mutant[at : at + rng.choice((1, 8, 256))]
        else:
            mutant[at:at] = rng.choice(
                (b"-1", b"1e400", b"NaN", b"null", b"[[[[", b"{}", b"\xff", b"9" * 40, b'"\\ud800"', b"!!python/x ")
            )
    return bytes(mutant)


def blind(target: str, inputs: int, seed: int) -> None:
    """Read so many inputs that chance has made."""
    with tempfile.TemporaryDirectory() as folder:
        read, seeds = TARGETS[target](Path(folder))
        one, rng = guarded(read, Path(folder)), random.Random(seed)
        for data in seeds:  # also imports what is imported late
            with contextlib.suppress(Exception):
                read(data)
        for _ in range(inputs):
            data = changed(rng.choice(seeds), rng)
            try:
                one(data)
            except Exception:
                print(f"{target}: finding: {data!r}", flush=True)
                raise


def fuzz(target: str, arguments: Sequence[str]) -> None:
    """Hand the reader to libFuzzer, which ends this process; `arguments` are its options."""
    import atheris

    # Only our own code guides: PyTorch's would take minutes to instrument.
    with atheris.instrument_imports(include=["marl_sb3", "yaml", "msgspec"]):
        pass
    folder = Path(tempfile.mkdtemp(dir=os.environ["GUIDED_FOLDER"]))
    read, seeds = TARGETS[target](folder)
    for data in seeds:
        with contextlib.suppress(Exception):
            read(data)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, data in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(data[:_MOST_BYTES])
    atheris.Setup([sys.argv[0], *arguments, str(corpus)], guarded(read, folder))
    atheris.Fuzz()


# --- The command -----------------------------------------------------------------------------------------------------


def run(target: str, inputs: int, seconds: int, seed: int, kept: Path) -> tuple[str, bool]:
    """Fuzz a target in a process of its own; returns a row of the table, and whether it found nothing."""
    limits = [f"-runs={inputs}", f"-max_total_time={seconds}", f"-timeout={_SECONDS}", f"-rss_limit_mb={_MEGABYTES}"]
    options = [
        *limits,
        f"-max_len={_MOST_BYTES}",
        f"-seed={seed}",
        f"-artifact_prefix={kept}/{target}-",
        "-print_final_stats=1",
    ]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--in-process", target, *options],
            env={**os.environ, "GUIDED_FOLDER": folder, "PYTHONWARNINGS": "ignore"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        )  # fmt: skip
    last = _DONE.search(done.stdout)
    pulses = _PULSE.findall(done.stdout)
    count = int(last[1]) if last else int(pulses[-1][0]) if pulses else 0
    coverage = pulses[-1][1] if pulses else "-"
    took = time.monotonic() - began
    verdict = "no finding" if done.returncode == 0 else "FINDING"
    row = f"{target:12} {count:>11,} inputs  {took:7.0f} s  {coverage:>6} edges  {verdict}"
    if done.returncode:
        artefact = _FOUND.search(done.stdout)
        row += f"\n{done.stdout[-3000:]}\n{f'kept in {artefact[1]}' if artefact else ''}"
    return row, done.returncode == 0


def main() -> int:
    """Fuzz the targets one after the other; returns the exit code."""
    if sys.argv[1:2] == ["--in-process"]:
        fuzz(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--inputs", type=int, default=10_000_000, help="of all targets together; default: %(default)s")
    parser.add_argument("--seconds", type=int, default=0, help="of all targets together; default: 0, no limit")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--blind", action="store_true", help="without Atheris: changes by chance")
    parser.add_argument(
        "--keep", type=Path, default=Path(), help="folder for inputs that are findings; default: this one"
    )
    options = parser.parse_args()
    targets = options.targets or list(TARGETS)
    if unknown := [target for target in targets if target not in TARGETS]:
        parser.error(f"unknown target {unknown[0]!r}; accepted: {', '.join(TARGETS)}")
    share = sum(SHARES[target] for target in targets)
    sound = True
    for target in targets:
        if options.blind:
            blind(target, options.inputs // len(targets), options.seed)
            continue
        inputs = max(1, int(options.inputs * SHARES[target] / share))
        row, is_sound = run(target, inputs, options.seconds // len(targets), options.seed, options.keep.absolute())
        print(row, flush=True)
        sound = sound and is_sound
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
