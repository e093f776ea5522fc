"""What trackers have written on this machine, read back without their packages where that is possible."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

Steps = list[tuple[int, dict[str, Any]]]  # env steps, values by name; as often as they are there


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: LevelDB's log, blocks of 32 KiB with pieces of records."""
    from wandb.proto import wandb_internal_pb2

    data, at, piece = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        piece = (b"" if kind in (1, 2) else piece) + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(piece)
            yield record


def wandb_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """Id -> steps, settings, artefacts, files, exit codes; of all offline runs below a folder, in their order."""
    runs: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("**/offline-run-*/*.wandb")):
        run = runs.setdefault(
            file.stem.removeprefix("run-"), {"steps": [], "settings": {}, "saved": [], "files": [], "exits": []}
        )
        for record in wandb_records(file):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                values = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                run["steps"].append((record.history.step.num, {key: json.loads(each) for key, each in values.items()}))
            elif kind == "run":
                run["settings"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "artifact":
                run["saved"] += [alias for alias in record.artifact.aliases if alias != "latest"]
            elif kind == "files":
                run["files"] += [each.path for each in record.files.files]
            elif kind == "exit":
                run["exits"].append(record.exit.exit_code)
    return runs


def mlflow_runs(file: Path) -> dict[str, dict[str, Any]]:
    """Id -> the same of an MLflow store in SQLite."""
    with closing(sqlite3.connect(file)) as store:
        runs = {}
        for number, status, place in store.execute("select run_uuid, status, artifact_uri from runs").fetchall():
            rows = store.execute("select step, key, value from metrics where run_uuid = ? order by step", [number])
            steps: dict[int, list[tuple[str, float]]] = {}
            for step, key, value in rows:
                steps.setdefault(step, []).append((key, value))
            settings = store.execute("select key, value from params where run_uuid = ?", [number]).fetchall()
            assert all(len(dict(values)) == len(values) for values in steps.values()), "a step is there twice"
            artifacts = Path(place)
            runs[number] = {
                "steps": [(step, dict(values)) for step, values in steps.items()],
                "settings": dict(settings),
                "saved": sorted(path.name for path in artifacts.glob("checkpoints/*")),
                "files": sorted(path.name for path in artifacts.glob("*") if path.is_file()),
                "media": sorted(path.name for path in artifacts.glob("media/*")),
                "exits": [status],
            }
    return runs


def trackio_runs(file: Path) -> dict[str, dict[str, Any]]:
    """Name -> the same of a project of Trackio."""
    with closing(sqlite3.connect(file)) as store:
        rows = store.execute("select run_name, step, metrics from metrics order by id").fetchall()
        runs: dict[str, dict[str, Any]] = {}
        for name, step, values in rows:
            run = runs.setdefault(name, {"steps": [], "settings": {}})
            run["steps"].append((step, json.loads(values)))
        for name, settings in store.execute("select run_name, config from configs").fetchall():
            runs[name]["settings"] |= json.loads(settings)
        aliases = store.execute("select alias from artifact_aliases where alias like 'ckpt-%'").fetchall()
        for run in runs.values():
            run["saved"] = sorted(alias for (alias,) in aliases)
    return runs
