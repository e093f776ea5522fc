"""A process that has imported everything, and forks a child for each training: that starts in milliseconds.

`python fork_server.py DESCRIPTOR` talks over a connection: `("start", arguments, shims, output)` is answered by an exit
code, as `subprocess` counts them, when the child has ended; `("signal", number)` goes to the child, if there is one.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

POLL_S = 0.002
WARM_UP = ["--n-envs", "2", "--timesteps", "8", "--seed", "0", "--set", "n_steps=4", "--set", "batch_size=4", "--quiet"]


def warm_up() -> None:
    """Train a little, which loads what is only loaded when it is needed: kernels, TensorBoard, safetensors."""
    import torch

    from marl_sb3.train import main

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        for number, settings in enumerate((["--policies", "per_agent"], ["--vectorizer", "sync"])):
            run = Path(folder, str(number))
            assert main(["arena", *WARM_UP, *settings, "--run-dir", str(run)]) == 0
            assert main(["--resume", str(run), "--timesteps", "8", "--quiet"]) == 0


def serve(connection: Connection) -> None:
    """Start children, one at a time, until the other side is gone."""
    child: int | None = None
    try:
        while True:
            if connection.poll(None if child is None else POLL_S):
                request, *arguments = connection.recv()
                if request == "start":
                    child = _fork(connection, *arguments)
                elif child is not None:
                    os.kill(child, *arguments)
            if child is not None and (ended := os.waitpid(child, os.WNOHANG))[0]:
                child = None
                connection.send(os.waitstatus_to_exitcode(ended[1]))
    except EOFError:
        if child is not None:
            os.kill(child, signal.SIGKILL)


def _fork(connection: Connection, arguments: Sequence[str], shims: Mapping[str, Any], output: str) -> int:
    child = os.fork()
    if child == 0:
        try:
            connection.close()
            _redirect(output)
            code = _train(arguments, shims)
        except BaseException:
            traceback.print_exc()
            code = 99
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return child


def _redirect(output: str) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _train(arguments: Sequence[str], spec: Mapping[str, Any]) -> int:
    import shims

    from marl_sb3.train import main

    shims.install(spec)
    try:
        return main(arguments)
    except SystemExit as left:  # argparse
        return int(left.code or 0)


if __name__ == "__main__":
    warm_up()
    ready = Connection(int(sys.argv[1]))
    ready.send("ready")
    serve(ready)
    os._exit(0)  # without taking PyTorch down in order, which takes a second
