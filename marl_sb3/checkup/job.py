"""The work of a process of an examination, as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """The work of a process.

    Attributes:
        env: an env id that the process can import; another name if it gets the factory.
        env_kwargs: for the factory.
        seed: determines all seeds.
        episodes: how many are recorded at most.
        steps: how many env steps are recorded at most.
        seconds: how long recording may take.
        measure_s: how long speed is measured.
        timeout_s: how long one call of the env may take.
        only_fingerprint: play the first episode and nothing else, to compare it with that of another process.
        search_path: of the caller, for the import of the env.
        imports: modules to import before the env is made, as after `--import`.
    """

    env: str
    env_kwargs: Mapping[str, Any]
    seed: int
    episodes: int
    steps: int
    seconds: float
    measure_s: float
    timeout_s: float
    only_fingerprint: bool = False
    search_path: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write it for `main`.

        Raises:
            TypeError: an argument of the env is no plain data.
        """
        (folder / "job.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Job:
        """Read a job that `write` has written."""
        return cls(**json.loads((folder / "job.json").read_text(encoding="utf-8")))
