"""Everything that README and docs show is run as written, and what they list is all that there is."""

from __future__ import annotations

import re
import runpy
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from documentation import PAGES, ROOT, blocks, run_command, run_page
from test_layers import LAYERS

import marl_sb3
from marl_sb3.checkup.checks.registry import CHECKS
from marl_sb3.config import load_config
from marl_sb3.runs.prepare import prepare

ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]
ENV_STEPS = 2_000  # of a training that would be longer than a trial
SHORT_SEARCH = {"timesteps": 6_000, "evaluations": 3, "evaluation_episodes": 2}


class WorkHere:
    """Takes the place of `tuning.jobs.workers.Workers`: does their work in this process."""

    def __init__(self, study: Any, count: int, queue: Any) -> None:
        self.study, self.queue = study, queue

    def run(self, look: Callable[[], None]) -> None:
        from marl_sb3.tuning.jobs.run import work_here

        work_here(self.study, self.queue, look)


@pytest.fixture
def short_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings and searches end early, searches and examinations run in this process; no page is changed otherwise."""
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

    from marl_sb3 import MultiAgentAlgorithm
    from marl_sb3.checkup import api as checkup
    from marl_sb3.tuning import api
    from marl_sb3.tuning.jobs import confirmations, run

    def capped(learn: Callable[..., Any]) -> Callable[..., Any]:
        def learn_briefly(self: Any, total_timesteps: int, *args: Any, **kwargs: Any) -> Any:
            budget = ENV_STEPS if total_timesteps > SHORT_SEARCH["timesteps"] else total_timesteps
            return learn(self, budget, *args, **kwargs)

        return learn_briefly

    for algorithm in (MultiAgentAlgorithm, OnPolicyAlgorithm):
        monkeypatch.setattr(algorithm, "learn", capped(algorithm.learn))

    prepare = api.prepare_study

    def prepare_short(*args: Any, **options: Any) -> Any:
        trials = {} if options.get("grid") else {"trials": 1}
        return prepare(*args, **{**options, **SHORT_SEARCH, **trials})

    monkeypatch.setattr(api, "prepare_study", prepare_short)
    trainings = confirmations._trainings
    monkeypatch.setattr(
        confirmations, "_trainings", lambda study, trials, seeds: trainings(study, trials, min(seeds, 2))
    )
    monkeypatch.setattr(run, "Workers", WorkHere)
    monkeypatch.setattr(checkup, "examine", partial(checkup.examine, isolated=False, measure_s=0.0))


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run in the arena, which the pages call `runs/arena/<run>`."""
    folder = tmp_path_factory.mktemp("documentation") / "20260101-120000-abcd"
    assert run_command(f"python -m marl_sb3.train arena --timesteps 6000 --seed 0 --quiet --run-dir {folder}") == 0
    return folder


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")  # of pettingzoo.test itself
@pytest.mark.usefixtures("short_budgets")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs_as_written(page: Path, trained_run: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(trained_run, in_tmp / "runs" / "arena" / trained_run.name)
    monkeypatch.syspath_prepend(in_tmp)
    run_page(page, in_tmp)


@pytest.mark.parametrize("block", ALL_BLOCKS, ids=str)
def test_block_is_run_or_says_why_not(block: Any) -> None:
    known = block.language in ("python", "bash", "yaml") or block.is_shown
    assert known or block.not_run is not None, f"{block}: {block.language!r} is a language that no test runs"
    assert not (block.is_shown and block.not_run), f"{block}: text is never run, and need not say so"


def test_every_excuse_belongs_to_a_block() -> None:
    for page in PAGES:
        excuses = sum(line.startswith("<!-- not run") for line in page.read_text(encoding="utf-8").splitlines())
        assert excuses == sum(block.not_run is not None for block in blocks(page)), page


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    commands = [line for block in blocks(ROOT / "README.md") if block.language == "bash" for line in block.commands()]
    (test_command,) = [line for line in commands if "pytest" in line]
    assert test_command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith(("http://", "https://"))]
    assert [link for link in local if not (page.parent / link).exists()] == []


GENERATED = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"]


@pytest.mark.parametrize("name", GENERATED)
def test_generated_page_is_current(name: str) -> None:
    page = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert page == GENERATED[name](), "write it anew: python docs/generate.py"


def test_the_findings_in_other_packages_are_of_checks_that_exist() -> None:
    rows = [line for line in text_of("how_to/doctor.md").splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|", 2)[2])}
    assert named
    assert named <= {check.id for check in CHECKS}


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_every_metric_is_in_the_reference(in_tmp: Path) -> None:
    run = prepare(load_config("arena", n_envs=2, settings={"n_steps": 100}))
    page = text_of("reference/metrics.md")
    for name in run.algorithm.metric_names():
        parts = [part for part in name.split("/") if part not in ("agent1", "agent2", "shared")]
        leaf = re.sub(r"_(mean|min|max)$", "", parts[-1]) if "custom_metrics" in name else parts[-1]
        stem = re.sub(r"_(mean|min|max)$", "", leaf)
        assert leaf in page or f"{stem}_{{mean,min,max}}" in page, name


def test_everything_public_is_in_the_reference() -> None:
    page = text_of("reference/python.md")
    public = [name for name in marl_sb3.__all__ if name != "__version__"]
    documented = set(re.findall(r"^\.\. auto\w+:: [\w.]+\.(\w+)$", page, flags=re.MULTILINE))
    assert [name for name in public if name not in documented and not hasattr(marl_sb3.errors, name)] == []


@pytest.mark.parametrize("names", LAYERS[1:], ids=lambda names: names[0])
def test_the_picture_has_every_layer(names: tuple[str, ...]) -> None:
    picture = text_of("how_it_is_built.md").partition("## Layers")[2].partition("A training takes")[0]
    assert [name for name in names if not re.search(rf"^([\w, ]+, )?{name}\b", picture, flags=re.MULTILINE)] == []


def test_the_library_example_does_what_it_promises(in_tmp: Path) -> None:
    (example,) = [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]
    namespace: dict[str, Any] = {}
    exec(example, namespace)
    assert namespace["metrics"]["episode_return_mean"] > 15
