"""Small runs for tests, whole and broken off, and the comparison of two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_records import differences_in_training, json_rows

import marl_sb3
from marl_sb3 import MultiAgentCallback
from marl_sb3.evaluate import main as evaluate
from marl_sb3.results.result_log import last_result

SMALL = {"n_steps": 20, "batch_size": 20, "n_epochs": 1, "env.max_timesteps": 15, "policy_kwargs.net_arch": [8]}
# Two runs are the same in what they have learned and logged, whatever their settings, and however often callbacks of a
# search, a benchmark or a phase were called that have nothing to keep.
NOT_LEARNED = ("TensorBoard: config/",)
NOT_LEARNED += tuple(
    f"latest checkpoint: /state/callbacks/{name}-0/n_calls"
    for name in ("StopOnMetric", "PruningCallback", "_ProcessorTime")
)


def start(folder: str, iterations: int = 8, **options: Any) -> marl_sb3.Run:
    settings = {**SMALL, "checkpoint_every": 2, **options.pop("settings", {})}
    if options.get("env", "arena") != "arena":
        del settings["env.max_timesteps"]
    arguments = {"env": "arena", "n_envs": 2, "seed": 7, "timesteps": 40 * iterations, **options}
    return marl_sb3.train(settings=settings, run_dir=folder, **arguments)


class Fail(MultiAgentCallback):
    """Ends the training as a crash would."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.step:
            raise RuntimeError("crash")
        return True


def crash(step: int, **options: Any) -> None:
    """A training, or the rest of one, that does not get beyond a step."""
    with pytest.raises(RuntimeError, match="crash"):
        marl_sb3.train(callback=[Fail(step)], **options)


def broken(folder: str, step: int = 210, **options: Any) -> None:
    with pytest.raises(RuntimeError, match="crash"):
        start(folder, callback=[Fail(step)], **options)


def rows(folder: str) -> list[dict[str, Any]]:
    return json_rows(Path(folder))


def assert_same_runs(one: str, other: str) -> None:
    found = [each for each in differences_in_training(Path(one), Path(other)) if not each.startswith(NOT_LEARNED)]
    assert not found, "\n".join(found)
    ended = [last_result(Path(each)) or {} for each in (one, other)]
    assert ended[0].get("fault_tolerance") == ended[1].get("fault_tolerance")


def shown(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    """The JSON that the command prints."""
    assert evaluate([*map(str, arguments), "--json"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    return dict(json.loads(captured.out))
