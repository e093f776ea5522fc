"""Send a server of policies what no client should send, and see whether it goes on answering.

    python tests/crash/serve_faults.py --requests 100000

Requests with odd values, odd bytes, odd heads and too large bodies, garbage on the socket, connections that are
dropped or fall silent; between them, requests that have to be answered rightly. Exit code 1: an answer with a status of
500 or above, a wrong answer, no answer, or more memory at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import math
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

import marl_sb3

TIMEOUT_S = 1.0  # of the server, for what does not arrive
BODY_BYTES = 20_000  # that the server accepts
_NO_ANSWER_S = 30.0
_SIDE_BY_SIDE = 32
_SILENT = 16  # connections that send a byte now and then
_MOST_MB = 24.0  # that the server may grow by after its first tenth of the requests

RIGHT: Mapping[str, Any] = {"observations": {"agent1": [3, 4], "agent2": [50, 99]}, "return_values": True}
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 100, 0.5, -0.0, 1e308, math.nan, math.inf, -math.inf, 2**63, -(2**64), 10**400),
    *("", "agent1", "\ud800", "\x00", "9" * 5000, [], {}, [[]], [[[[[[]]]]]], [0, 0, 0], ["0", "0"], [None, None]),
    *({"": {}}, {"agent1": 1}, {"observation": [0, 0], "action_mask": [1, 1, 1, 1]}, [[0, 0]] * 300),
)


@dataclass
class Tally:
    """What was answered."""

    # kind of request and status -> how many; status 0: the connection was closed without an answer
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)  # what must not be
    # memory of the server after each tenth of the requests; empty if it is this process
    rss_mb: list[float] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many were sent."""
        return self.answers.total()


# --- What is sent ----------------------------------------------------------------------------------------------------


def message(
    content: Any, method: str = "POST", path: str = "/predict", more: str = "Content-Type: application/json\r\n"
) -> bytes:
    """The bytes of a request; `content` is its body, or what is JSON of it."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def right(_: random.Random) -> bytes:
    """What a client should send."""
    return message(RIGHT)


def odd_values(rng: random.Random) -> bytes:
    """JSON with other values, keys or agents."""
    request: dict[str, Any] = deepcopy(dict(RIGHT))
    for _ in range(rng.randint(1, 3)):
        place: Any = rng.choice([request, request, *(each for each in request.values() if isinstance(each, dict))])
        keys = [*place, "batch", "deterministic", "action_masks", "states", "episode_starts", "rewards", "agent3"]
        if place and rng.random() < 0.1:
            del place[rng.choice(list(place))]
        else:
            place[rng.choice(keys)] = deepcopy(rng.choice(ODD))
    return message(json.dumps(request).encode("utf-8", "surrogatepass"))


def out_of_space(rng: random.Random) -> bytes:
    """Observations of the right form with numbers that are not in the space."""
    numbers = [rng.choice((100, -1, 0.5, math.nan, math.inf, 2**40, 10**30, 7)) for _ in range(2)]
    return message({"observations": {"agent1": numbers}})


def odd_bytes(rng: random.Random) -> bytes:
    """A request with some bytes changed, added or missing; its length may be wrong then."""
    request = bytearray(message(RIGHT))
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(request))
        change = rng.randrange(3)
        if change == 0:
            request[place] = rng.randrange(256)
        elif change == 1:
            request[place:place] = rng.randbytes(rng.randint(1, 20))
        else:
            del request[place : place + rng.randint(1, 20)]
    return bytes(request)


def odd_body(rng: random.Random) -> bytes:
    """A body of the right length that is no JSON, or deeply nested."""
    bodies = (rng.randbytes(rng.randrange(200)), b"[" * rng.randrange(9000), b'{"observations":' * 900, b"")
    return message(rng.choice(bodies))


def odd_head(rng: random.Random) -> bytes:
    """Methods, paths and headers that are not those of the server, or of any."""
    paths = (
        "/",
        "/predict/",
        "//",
        "/%00",
        "/../etc/passwd",
        "/" + "a" * 4000,
        "*",
        "/weights?a=" + "%ff" * 99,
        "/info",
    )
    headers = (
        *("Content-Type: text/plain", "Transfer-Encoding: chunked", "Content-Length: -1", "Content-Length: 9" * 3),
        *("Host: evil.example", "Origin: http://evil.example", "Expect: 100-continue", "Authorization: Bearer \xff"),
        *("If-None-Match: " + '"' * 900, "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13"),
        *("X: " + "y" * 70_000, "a: b\r\n" * 500 + "c: d", ": x", "\x00: x", "Connection: close"),
    )
    more = "".join(f"{rng.choice(headers)}\r\n" for _ in range(rng.randint(0, 3)))
    method = rng.choice(("GET", "POST", "PUT", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "\xe4", "A" * 300))
    return message(RIGHT if method == "POST" else b"", method, rng.choice(paths), more)


def too_large(rng: random.Random) -> bytes:
    """A body above the limit: announced, or in pieces that go on and on."""
    body = b" " * (BODY_BYTES + rng.randint(1, 50_000))
    if rng.random() < 0.5:
        return message(body)
    head = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"".join(b"%x\r\n%s\r\n" % (4096, body[:4096]) for _ in range(12))


def garbage(rng: random.Random) -> bytes:
    """No HTTP at all."""
    return rng.randbytes(rng.choice((1, 3, 100, 5000, 100_000)))


def several(rng: random.Random) -> bytes:
    """Requests one after the other, without waiting for the answers."""
    return b"".join(rng.choice(_SIMPLE)(rng) for _ in range(rng.randint(2, 6)))


_SIMPLE: tuple[Callable[[random.Random], bytes], ...] = (right, odd_values, out_of_space, odd_body)
# Kind of request -> its share.
KINDS: Mapping[Callable[[random.Random], bytes], float] = {
    right: 0.1,
    odd_values: 0.3,
    out_of_space: 0.12,
    odd_bytes: 0.1,
    odd_body: 0.1,
    odd_head: 0.13,
    too_large: 0.05,
    garbage: 0.05,
    several: 0.05,
}


# --- Sending it ------------------------------------------------------------------------------------------------------


class Attack:
    """Sends requests to a server, many at a time.

    Args:
        address: of the server.
        seed: of what is sent.
    """

    def __init__(self, address: str, seed: int) -> None:
        self._port = urlsplit(address).port
        self._rng = random.Random(seed)
        self._left = 0
        self._expected: Any = None
        self.tally = Tally()

    async def run(self, requests: int) -> None:
        """Send so many requests, while other connections stay silent."""
        self._expected = self._expected or json.loads((await self._exchange(right(self._rng)))[1])["actions"]
        self._left = requests
        silent = [asyncio.create_task(self._stay_silent()) for _ in range(_SILENT)]
        await asyncio.gather(*(self._send() for _ in range(_SIDE_BY_SIDE)))
        for each in silent:
            each.cancel()
        await asyncio.gather(*silent, return_exceptions=True)
        await asyncio.sleep(0)  # the resets are carried out

    async def _send(self) -> None:
        while self._left > 0:
            self._left -= 1
            (kind,) = self._rng.choices(list(KINDS), list(KINDS.values()))
            data = kind(self._rng)
            drops = kind is not right and self._rng.random() < 0.1  # goes away in the midst of it
            try:
                status, body = await self._exchange(
                    data[: self._rng.randrange(len(data) + 1)] if drops else data, drops
                )
            except TimeoutError:
                self.tally.failures.append(f"{kind.__name__}: no answer to {data[:300]!r}")
                continue
            self.tally.answers[kind.__name__, status] += 1
            if status >= 500:
                self.tally.failures.append(f"{kind.__name__}: {status} {body[:200]!r} for {data[:300]!r}")
            if kind is right and (status != 200 or json.loads(body)["actions"] != self._expected):
                self.tally.failures.append(f"a right request is answered {status} {body[:200]!r}")

    async def _exchange(self, data: bytes, drops: bool = False) -> tuple[int, bytes]:
        """Send data on a new connection; returns status and body of the first answer, status 0 without one."""
        async with asyncio.timeout(_NO_ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                writer.write(data)
                if drops:
                    return 0, b""
                return await _answer(reader, has_body=not data.startswith(b"HEAD "))
            except OSError:
                return 0, b""
            finally:
                _reset(writer)

    async def _stay_silent(self) -> None:
        """Begin requests and never end them: a byte of a head or of a body now and then."""
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                cut = self._rng.choice((0, 5, 40, 150))
                writer.write(message(RIGHT)[:cut])
                for _ in range(100):
                    if reader.at_eof() or writer.is_closing():
                        break
                    await asyncio.sleep(TIMEOUT_S / 8)
                    writer.write(b"x")
                else:
                    self.tally.failures.append(f"a connection that sends a byte now and then stays open (cut at {cut})")
            finally:
                _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection by a reset: thousands of ports would be kept in TIME_WAIT otherwise."""
    linger = struct.pack("ii", 1, 0)
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def _answer(reader: asyncio.StreamReader, has_body: bool) -> tuple[int, bytes]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status == 100:
            return await _answer(reader, has_body)
        lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return status, await reader.readexactly(int(lengths[0]) if lengths and has_body else 0)
    except (asyncio.IncompleteReadError, IndexError):
        return 0, b""


# --- The command -----------------------------------------------------------------------------------------------------


@contextmanager
def served(run: Path, *options: str) -> Iterator[tuple[str, psutil.Process]]:
    """Serve a run in a process of its own; its address and its process."""
    command = [sys.executable, "-m", "marl_sb3.serve", str(run), "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as made:
        try:
            assert made.stdout is not None
            address = next(line.split()[-1] for line in made.stdout if line.startswith("serving on"))
            yield address, psutil.Process(made.pid)
        finally:
            made.terminate()
        assert made.wait(30) == 130, f"the server ended with exit code {made.returncode}"


def attack_process(run: Path, requests: int, seed: int) -> Tally:
    """Attack a server in a process of its own, whose memory is watched."""
    with served(run, "--timeout-s", str(TIMEOUT_S), "--max-body", str(BODY_BYTES)) as (address, server):
        attack = Attack(address, seed)
        for part in range(10):
            asyncio.run(attack.run(requests * (part + 1) // 10 - requests * part // 10))
            time.sleep(2 * TIMEOUT_S)  # for what is still open
            attack.tally.rss_mb.append(server.memory_info().rss / 1e6)
    tally = attack.tally
    if tally.rss_mb[-1] - tally.rss_mb[0] > _MOST_MB:
        tally.failures.append(f"memory grew from {tally.rss_mb[0]:.0f} to {tally.rss_mb[-1]:.0f} MB")
    return tally


def main() -> int:
    """Train a run, attack its server, and say what was answered."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--requests", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        with redirect_stdout(io.StringIO()):
            marl_sb3.train("arena", timesteps=2000, n_envs=4, seed=1, run_dir=run)
        begun = time.perf_counter()
        tally = attack_process(run, arguments.requests, arguments.seed)
    for (kind, status), count in sorted(tally.answers.items()):
        print(f"{kind:<12} {status or 'no answer':<10} {count:>8}")
    memory = " -> ".join(f"{each:.0f} MB" for each in tally.rss_mb)
    print(f"{tally.requests} requests in {time.perf_counter() - begun:.0f} s; memory of the server: {memory}")
    for failure in tally.failures[:20]:
        print(f"wrong: {failure}")
    print(f"{len(tally.failures)} failures")
    return bool(tally.failures)


if __name__ == "__main__":
    sys.exit(main())
