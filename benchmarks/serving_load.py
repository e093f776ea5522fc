"""Measure requests per second and latencies of servers of one policy.

    python benchmarks/serving_load.py RUN [--sides NAME,...] [--clients 1,8,64] [--seconds 3] [--repeats 3]

serve:        `marl_sb3.serve`: requests that arrive together are answered together
alone:        the same, each request answered alone
litserve:     LitServe with SB3's `predict` on batches of up to 64 requests (pip install litserve)
lit_alone:    the same without batches of requests

The clients are coroutines of this process, each with one connection that stays open, which asks again when it has its
answer. A request has one observation, or 64 of them (`batch`) for the servers that take batches. Everything stays on
127.0.0.1. A server is a process of its own, warmed up before it is measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from command_line import add_names, parser
from measure import Report, Setting, number, print_table, spread, take_turns

from marl_sb3 import load_policies

SIDES = ("serve", "alone", "litserve", "lit_alone")
ROWS = (1, 64)  # observations in a request
WARM_UP_S = 0.5
DEADLINE_S = 60.0  # for a server to answer its first request
SETTING = Setting(
    what="one policy on one machine; clients and server on 127.0.0.1, on the same cores",
    hyperparameters={},
    threads="1 process with 1 torch thread for each server (LitServe: 1 worker), 1 process of clients",
    changes={},
    packages=("marl_sb3", "stable-baselines3", "torch", "starlette", "uvicorn"),
)

# What a server process runs; `sys.argv`: run folder, port, side.
OURS = """
import gc
import sys
from marl_sb3.runs.run import SavedRun
from marl_sb3.tools.serving import Limits, Listening
from marl_sb3.tools.serving.api import Api
from marl_sb3.tools.serving.predictor import Predictor

folder, port, side = sys.argv[1:]
api = Api(
    Predictor(SavedRun.open(folder, makes_env=False)),
    Limits(),
    reload_s=0.0,
    settled=gc.freeze,
    max_rows=1 if "alone" in side else 4096,
)
api.server(Listening(port=int(port))).run(print)
"""
THEIRS = """
import sys
import litserve
import numpy as np
import torch
from marl_sb3 import load_policies

class Policy(litserve.LitAPI):
    def setup(self, device):
        torch.set_num_threads(1)
        bundle = load_policies(sys.argv[1], device="cpu")
        self.algorithm = next(iter(bundle.policies.values()))
    def decode_request(self, request):
        (observation,) = request["observations"].values()
        return np.asarray(observation)
    def batch(self, inputs):
        return np.stack(inputs)
    def predict(self, batch):
        return self.algorithm.predict(batch, deterministic=True)[0]
    def unbatch(self, output):
        return list(output)
    def encode_response(self, output):
        return {"actions": output.tolist()}

if __name__ == "__main__":
    together = {"max_batch_size": 64, "batch_timeout": 0.0} if sys.argv[3] == "litserve" else {}
    server = litserve.LitServer(Policy(**together), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="error")
"""


@dataclass(frozen=True)
class Load:
    """What some clients got."""

    requests_per_s: float  # answers per second of all clients together
    p50_ms: float  # median time of a request
    p99_ms: float  # 99 of 100 requests took less


# --- Clients ---------------------------------------------------------------------------------------------------------


def post(path: str, content: Any) -> bytes:
    """The bytes of a request."""
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """Send a request and return the body of its answer, which must be 200."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    body = await reader.readexactly(int(length[15:]))
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"{head[:20]!r}: {body[:300]!r}")
    return body


async def client(port: int, request: bytes, end: float, times: list[tuple[float, float]]) -> None:
    """Ask again and again until `end`; adds begin and length of each request to `times`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (begun := time.perf_counter()) < end:
        await ask(reader, writer, request)
        times.append((begun, time.perf_counter() - begun))
    writer.close()


async def load(port: int, request: bytes, clients: int, seconds: float) -> Load:
    """Let clients ask at the same time."""
    times: list[tuple[float, float]] = []
    begun = time.perf_counter()
    end = begun + WARM_UP_S + seconds
    await asyncio.gather(*(client(port, request, end, times) for _ in range(clients)))
    taken = sorted(length for start, length in times if start >= begun + WARM_UP_S)
    percentile = [taken[min(len(taken) - 1, int(len(taken) * share))] * 1000 for share in (0.5, 0.99)]
    return Load(len(taken) / seconds, *percentile)


# --- Servers ---------------------------------------------------------------------------------------------------------


def program(side: str) -> str:
    """What the process of a server runs."""
    return THEIRS if "lit" in side else OURS


@contextmanager
def served(run: str, side: str, folder: Path) -> Iterator[int]:
    """Start a server in a process of its own; yields its port when it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = folder / f"server_{side}.py"  # no name of a module
    script.write_text(program(side), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), run, str(port), side]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_until_ready(process, port, side)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # LitServe's processes outlive the one that was started
        process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int, side: str) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end and process.poll() is None:
        try:
            urlopen(f"http://127.0.0.1:{port}/health").read()
            return
        except (URLError, OSError):
            pass
        time.sleep(0.2)
    raise RuntimeError(f"{side} does not answer; exit code {process.poll()}")


def measure(run: str, side: str, clients: list[int], seconds: float, folder: Path, _: int) -> dict[str, Load]:
    """Measure one server; returns `CLIENTS x ROWS` -> its figures."""
    bundle = load_policies(run, device="cpu")
    agent = next(iter(bundle.policy_of))
    space = bundle.spaces[bundle.policy_of[agent]].observation
    space.seed(0)
    found = {}
    with served(run, side, folder) as port:
        for rows in ROWS[:1] if side == "litserve" else ROWS:
            observations = [space.sample().tolist() for _ in range(rows)]
            content: dict[str, Any] = {"observations": {agent: observations[0]}}
            if rows > 1:
                content = {"observations": {agent: observations}, "batch": rows}
            request = post("/predict", content)
            for number_of in clients:
                found[f"{number_of} x {rows}"] = asyncio.run(load(port, request, number_of, seconds))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure all sides in turns, and print a table."""
    options = parser(__doc__)
    options.add_argument("run", metavar="RUN", help="a run folder; its observations are arrays of numbers")
    add_names(options, "--sides", SIDES)
    options.add_argument("--clients", type=lambda text: [int(each) for each in text.split(",")], default=[1, 8, 64])
    options.add_argument("--seconds", type=float, default=3.0, help="of each measurement; default: 3")
    arguments = options.parse_args(argv)
    with TemporaryDirectory() as folder:
        sides = {
            side: partial(measure, arguments.run, side, arguments.clients, arguments.seconds, Path(folder))
            for side in arguments.sides
        }
        measured = take_turns(sides, arguments.repeats)
    report, rows = Report("serving_load", SETTING), []
    for side, turns in measured.items():
        for case in turns[0]:
            loads = [turn[case] for turn in turns]
            report.results[f"{side}, {case}"] = [asdict(each) for each in loads]
            p50, p99 = (statistics.median(getattr(each, name) for each in loads) for name in ("p50_ms", "p99_ms"))
            rows.append([f"{side}, {case}", spread([each.requests_per_s for each in loads]), number(p50), number(p99)])
    print_table(["server, clients x observations", "requests per s", "p50 ms", "p99 ms"], rows)
    report.write(arguments.json)


if __name__ == "__main__":
    main()
