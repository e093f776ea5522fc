"""No process is left over when several processes train and their command ends, however it does; and nothing is lost."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

import psutil
import pytest
from forked import ForkServer, run_really
from waiting import wait_for

from marl_sb3.results.result_log import last_result, read_results

BENCHMARK = "{algos: [ppo], envs: [arena], seeds: [0, 1], settings: {n_timesteps: 1e7, n_steps: 20, batch_size: 20}}"
TRAIN = "train arena --n-envs 4 --timesteps 10000000 --set n_steps=20 --set batch_size=20 --run-dir"
AGAIN = "continue with: python -m marl_sb3"
# A command; the folders of its runs; how many processes of the system it starts; what it says of each interrupted run.
COMMANDS = {
    "runners": (f"{TRAIN} 'some where/run' --runners 2", "run", 3, f"{AGAIN}.train --resume 'some where/run'"),
    "seeds": (f"{TRAIN} 'some where' --seeds 2", "seed-?", 2,
              f"seed {{0}}: interrupted; {AGAIN}.train --resume 'some where/seed-{{0}}'"),
    "benchmark": ("benchmark a.yml --folder 'some where'", "arena/ppo/seed-?", 2,
                  f"{AGAIN}.benchmark a.yml --folder 'some where'"),
}  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.proof)])
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_left_over_or_lost(name: str, number: int, tmp_path: Path, server: ForkServer) -> None:
    (tmp_path / "a.yml").write_text(BENCHMARK)
    line, folders, processes, said = COMMANDS[name]
    command, output, root = shlex.split(line), tmp_path / "output", tmp_path / "some where"
    forked = number == signal.SIGINT and name != "runners"  # then the server has all processes, and takes no time
    start = server.run if forked else run_really
    run = start(["-m", f"marl_sb3.{command[0]}", *command[1:]], output, folder=tmp_path)
    runs = 1 if name == "runners" else 2
    wait_for(lambda: sum(map(bool, map(last_result, root.glob(folders)))) == runs)
    started = psutil.Process(run.pid).children(recursive=True)
    assert forked or len(started) == processes
    run.send_signal(number)
    assert run.wait() == (130 if number == signal.SIGINT else -9), output.read_text()
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    for run_number in range(runs):
        assert (said.format(run_number) in output.read_text().splitlines()) == (number == signal.SIGINT)
    for folder in root.glob(folders):
        newest = max((path.name for path in (folder / "checkpoints").glob("ckpt-*")), default=None)
        saved = number == signal.SIGINT or name != "runners"  # which end with their learner, the others save first
        assert (newest == f"ckpt-{len(read_results(folder)):06d}") == saved
        assert not list(folder.parent.glob("*.claim-*")) or number == signal.SIGKILL
