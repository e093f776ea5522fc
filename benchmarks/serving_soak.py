"""Load a server for an hour while newer checkpoints come, and see whether requests are lost or memory grows.

    python benchmarks/serving_soak.py RUN [--minutes 60] [--clients 4] [--rate 20] [--every 30]

The server is `marl_sb3.serve --checkpoint latest` on a copy of the run, into which one of the run's two newest
checkpoints is put every 30 seconds under a new name; every fifth of them is damaged. The clients ask at random times,
each on a connection that stays open. An answer is wrong if its values are not those of the checkpoint that it names. At
the end the server gets SIGTERM while the clients go on, which must lose nothing either. Figures of the server are those
of its metrics. Exit code 1: a request was lost or answered wrongly, or a checkpoint was not served.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from command_line import add_count, parser
from measure import Report, Setting, number, print_table, say
from serving_load import post

from marl_sb3 import load_policies

QUESTIONS = 32  # different observations
DAMAGED = 5  # every so many checkpoints
KEPT = 3  # checkpoints in the folder
SAMPLES = 60  # of the server's memory, over the whole time
DEADLINE_S = 60.0  # for the server to begin, for an answer, and to end
DRAIN_S = 2.0
RELOAD_S = 1.0
ENDED_BY_SIGNAL = 130  # exit code of a server that ended as it should
SETTING = Setting(
    what="one policy on one machine; clients and server on 127.0.0.1, on the same cores",
    hyperparameters={},
    threads="1 process of the server, 1 process of clients",
    changes={},
    packages=("marl_sb3", "stable-baselines3", "torch", "starlette", "uvicorn"),
)


# --- Checkpoints -----------------------------------------------------------------------------------------------------


@dataclass
class Publisher:
    """Puts newer checkpoints into a folder, as a training does."""

    sources: Sequence[Path]  # checkpoints that are copied, in turns
    folder: Path  # where they appear
    damaged: int = 0  # so far
    numbers: Iterator[int] = field(default_factory=count)

    def publish(self) -> None:
        """Put the next one there, and remove old ones."""
        number_ = next(self.numbers)
        fresh = shutil.copytree(self.sources[number_ % len(self.sources)], self.folder / "fresh")
        if number_ % DAMAGED == DAMAGED - 1:
            self.damaged += 1
            state = fresh / "state.json"
            state.write_bytes(state.read_bytes()[:-1])
        fresh.rename(self.folder / f"ckpt-{number_:06}")
        shutil.rmtree(self.folder / f"ckpt-{number_ - KEPT:06}", ignore_errors=True)

    def source_of(self, checkpoint: str) -> int:
        """The number of the source of a checkpoint."""
        return int(checkpoint.removeprefix("ckpt-")) % len(self.sources)


# --- Clients ---------------------------------------------------------------------------------------------------------


@dataclass
class Soak:
    """Clients of one server, and what they got."""

    port: int
    requests: Sequence[bytes]
    expected: Sequence[Sequence[float]]  # source -> request -> value
    publisher: Publisher
    rate: float  # requests per second of each client
    is_ending: bool = False  # whether the server was told to end
    times_s: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # why requests were not answered, or with another status than 200
    wrong: list[str] = field(default_factory=list)  # answers with values of another checkpoint
    checkpoints: set[str] = field(default_factory=set)  # that answered

    async def client(self, seed: int) -> None:
        """Ask at random times until the server has ended."""
        rng, connection = random.Random(seed), None
        while True:
            await asyncio.sleep(rng.expovariate(self.rate))
            chosen = rng.randrange(len(self.requests))
            if connection is not None and connection[0].at_eof():
                connection = None  # the server has closed it between two requests
            try:
                connection = connection or await asyncio.open_connection("127.0.0.1", self.port)
            except OSError as error:
                if self.is_ending:
                    return
                self.lost.append(repr(error))
                continue
            begun_s = time.perf_counter()
            try:
                async with asyncio.timeout(DEADLINE_S):
                    closes, body = await exchange(*connection, self.requests[chosen])
            except (OSError, EOFError, RuntimeError) as error:
                self.lost.append(repr(error))
                connection = None
                continue
            self.times_s.append(time.perf_counter() - begun_s)
            self.check(chosen, json.loads(body))
            if closes:
                connection[1].close()
                connection = None

    def check(self, chosen: int, answer: Any) -> None:
        """Compare an answer with what the checkpoint that it names should answer."""
        self.checkpoints.add(answer["checkpoint"])
        (value,) = answer["values"].values()
        expected = self.expected[self.publisher.source_of(answer["checkpoint"])][chosen]
        if not math.isclose(value, expected, rel_tol=1e-4, abs_tol=1e-5):
            self.wrong.append(f"{answer['checkpoint']}: {value}, not {expected}")


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[bool, bytes]:
    """Send a request; returns whether its answer, which must be 200, closes the connection, and the body."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    body = await reader.readexactly(int(length[15:]))
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(f"{head[:20]!r}: {body[:300]!r}")
    return b"\r\nconnection: close\r\n" in head, body


def questions(sources: Sequence[Path]) -> tuple[list[bytes], list[list[float]]]:
    """Return requests, and their values by the policies of each source."""
    bundles = [load_policies(source, device="cpu") for source in sources]
    agent = next(iter(bundles[0].policy_of))
    space = bundles[0].spaces[bundles[0].policy_of[agent]].observation
    space.seed(0)
    seen = [space.sample() for _ in range(QUESTIONS)]
    asked = [post("/predict", {"observations": {agent: each.tolist()}, "return_values": True}) for each in seen]
    return asked, [[float(bundle.value({agent: each})[agent]) for each in seen] for bundle in bundles]


# --- The server ------------------------------------------------------------------------------------------------------


@contextmanager
def served(run: Path, log: Path) -> Iterator[tuple[int, Any]]:
    """Start a server; yields its port and its process."""
    options = ["--port", "0", "--checkpoint", "latest", "--reload-s", str(RELOAD_S), "--drain-s", str(DRAIN_S)]
    command = [sys.executable, "-m", "marl_sb3.serve", str(run), *options]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=dict(os.environ))
    try:
        end = time.monotonic() + DEADLINE_S
        while "serving on http" not in (text := log.read_text()):
            if time.monotonic() > end or process.poll() is not None:
                raise RuntimeError(f"the server does not begin:\n{text}")
            time.sleep(0.05)
        yield int(text.partition("serving on http")[2].split()[0].rpartition(":")[2]), process
    finally:
        process.kill()
        process.wait()


def metrics_of(port: int) -> dict[str, float]:
    """Return the server's metrics, by name and labels."""
    lines = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S).read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


async def soak(found: Soak, process: Any, clients: int, seconds: float, every_s: float) -> list[dict[str, float]]:
    """Let clients ask while checkpoints come; returns the server's metrics over time."""
    asking = [asyncio.create_task(found.client(seed)) for seed in range(clients)]
    begun_s = time.monotonic()
    metrics = [await asyncio.to_thread(metrics_of, found.port)]
    while (passed_s := time.monotonic() - begun_s) < seconds:
        due_s = [(int(passed_s / step_s) + 1) * step_s for step_s in (every_s, seconds / SAMPLES)]
        await asyncio.sleep(max(0.0, min(*due_s, seconds) - passed_s))
        if due_s[0] <= min(due_s[1], seconds):
            await asyncio.to_thread(found.publisher.publish)
        if due_s[1] <= due_s[0]:
            metrics.append(await asyncio.to_thread(metrics_of, found.port))
            say(f"{passed_s / 60:.1f} minutes: {len(found.times_s)} answers, {len(found.lost)} requests lost")
    found.is_ending = True
    process.terminate()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*asking)
    return metrics


# --- Figures ---------------------------------------------------------------------------------------------------------


def figures(found: Soak, metrics: Sequence[dict[str, float]], seconds: float) -> dict[str, Any]:
    """Return the figures of a soak."""
    times_ms = sorted(1000 * each for each in found.times_s)

    def percentile(share: float) -> float:
        return times_ms[min(len(times_ms) - 1, int(len(times_ms) * share))]

    memory_mb = [each["process_resident_memory_bytes"] / 1e6 for each in metrics]
    first = memory_mb[len(memory_mb) // 10]  # what is loaded late is no growth
    reloads = {result: metrics[-1][f'marl_sb3_reloads_total{{result="{result}"}}'] for result in ("done", "failed")}
    return {
        "seconds": seconds,
        "answers": len(times_ms),
        "answers_per_s": len(times_ms) / seconds,
        "lost": len(found.lost),
        "wrong": len(found.wrong),
        **{f"p{share}_ms": percentile(share / 100) for share in (50, 99, 99.9)},
        "longest_ms": times_ms[-1],
        "memory_mb": memory_mb,
        "growth_mb": memory_mb[-1] - first,
        "open_files": [metrics[0]["process_open_fds"], metrics[-1]["process_open_fds"]],
        "checkpoints": len(found.checkpoints),
        "damaged": found.publisher.damaged,
        "reloads": reloads,
        "cpu_s_per_1000": 1000 * metrics[-1]["process_cpu_seconds_total"] / len(times_ms),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak, and print its figures; returns the exit code."""
    options = parser(__doc__, repeats=None)
    options.add_argument("run", metavar="RUN", type=Path, help="a run folder of policies with values, such as PPO's")
    options.add_argument("--minutes", type=float, default=60.0, help="how long; default: 60")
    add_count(options, "--clients", 4, "how many clients ask")
    options.add_argument("--rate", type=float, default=20.0, help="requests per second of all clients; default: 20")
    options.add_argument("--every", type=float, default=30.0, help="seconds between two checkpoints; default: 30")
    arguments = options.parse_args(argv)
    seconds = arguments.minutes * 60
    with TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        shutil.copytree(arguments.run, run)
        sources = sorted((run / "checkpoints").rename(Path(temporary) / "sources").glob("ckpt-*"))[-2:]
        (run / "checkpoints").mkdir()
        publisher = Publisher(sources, run / "checkpoints")
        publisher.publish()
        asked, expected = questions(sources)
        with served(run, Path(temporary) / "log") as (port, process):
            found = Soak(port, asked, expected, publisher, arguments.rate / arguments.clients)
            metrics = asyncio.run(soak(found, process, arguments.clients, seconds, arguments.every))
            exit_code = process.wait(DEADLINE_S)
        if exit_code != ENDED_BY_SIGNAL:
            print((Path(temporary) / "log").read_text())
    result = figures(found, metrics, seconds) | {"exit_code": exit_code}
    report = Report("serving_soak", SETTING, {"soak": result})
    print_table(["", ""], [[name, shown(value)] for name, value in result.items()])
    for problem in (*found.lost[:5], *found.wrong[:5]):
        print(problem)
    report.write(arguments.json)
    return int(bool(found.lost or found.wrong or exit_code != ENDED_BY_SIGNAL))


def shown(value: Any) -> str:
    """Format a figure, or the first and the last of several."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {each:g}" for name, each in value.items())
    return f"{number(value[0])} to {number(value[-1])}" if isinstance(value, list) else number(value)


if __name__ == "__main__":
    sys.exit(main())
