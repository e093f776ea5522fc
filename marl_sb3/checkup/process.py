"""The process in which an env is played: `python -m marl_sb3.checkup.process FOLDER`, or a fork of the caller's.

Everything that it finds is a line of JSON in `FOLDER/results.jsonl`, written at once, so that what was found before a
crash is kept.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from marl_sb3.checkup.examination import examine_here
from marl_sb3.checkup.finding import facts_of
from marl_sb3.checkup.job import Job
from marl_sb3.checkup.player import EnvUnderTest, StoppedError
from marl_sb3.checkup.probes import fingerprint_of, look_at_interface
from marl_sb3.checkup.watch import ProcessWatch
from marl_sb3.envs.registry import EnvFactory, env_factory, import_modules
from marl_sb3.errors import ConfigError, EnvRaisedError


def work(folder: Path, job: Job, factory: EnvFactory | None = None) -> None:
    """Do a job, with all output in files of the folder."""
    _redirect_output(folder)
    with (folder / "results.jsonl").open("w", encoding="utf-8") as results:

        def tell(**line: Any) -> None:
            results.write(f"{json.dumps(line, default=str)}\n")
            results.flush()

        try:
            watch = ProcessWatch(folder, job.timeout_s)
            watch.at("the import of the env")
            import_modules(job.imports)
            subject = EnvUnderTest(job, factory or env_factory(job.env), watch)
            (_compare if job.only_fingerprint else _examine)(subject, tell)
        except ConfigError as error:
            tell(refused=str(error), key=error.key)
        except EnvRaisedError as error:
            tell(raised=str(error))
        except Exception:
            tell(failed=traceback.format_exc())
        tell(done=True)
    os._exit(0)  # a thread or a process that the env has left would keep this process from ending


def _examine(subject: EnvUnderTest, tell: Any) -> None:
    def tell_facts() -> None:
        evidence = subject.evidence
        found = evidence.comparisons
        repeats = found is not None and found.fresh is None
        tell(facts=facts_of(evidence), fingerprint=evidence.fingerprint if repeats else None)

    for finding in examine_here(subject, tell_facts):
        tell(finding=finding.to_plain())


def _compare(subject: EnvUnderTest, tell: Any) -> None:
    try:
        look_at_interface(subject)
        tell(fingerprint=fingerprint_of(subject, 0))
    except StoppedError:
        return  # the other process says so


def _redirect_output(folder: Path) -> None:
    """Send what the env prints, in C too, to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)


def main(folder: str) -> None:
    """Do the job of a folder."""
    job = Job.read(Path(folder))
    sys.path[:] = [*job.search_path, *(path for path in sys.path if path not in job.search_path)]
    work(Path(folder), job)


if __name__ == "__main__":
    main(sys.argv[1])
