"""Everything that README and docs show is run as written, and what they list is all that there is."""

from __future__ import annotations

import io
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from documentation import PAGES, ROOT, Block, blocks, run_command, run_page
from layers import COMMANDS, RANK

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm
from marl_sb3.core.config.algorithms import algorithm_info
from marl_sb3.core.learners.building import is_off_policy
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.extensions.fast.builtin import ALGORITHMS
from marl_sb3.runs.settings import load_config
from marl_sb3.runs.start import prepare
from marl_sb3.tools.examining.checks import CHECKS

MOST_ENV_STEPS = 400  # of a training, as many as the largest minibatch; what is due is finished
UPDATES = 10  # env steps after `learning_starts` in a training with a replay buffer
EPISODE_STEPS = 8  # of the arena, so that each env ends one in `MOST_ENV_STEPS` of 20 envs
MOST_EPISODES = 1  # of an evaluation by each env
MOST_COMPARED = 50  # steps of two versions of an env
SHORT_SEARCH = {"timesteps": 801, "evaluations": 2, "evaluation_episodes": 2}
LATEST_START = 100  # env steps before the first update from a replay buffer


class TrainHere:
    """Takes the place of `subprocess.Popen` in `runs.jobs`: runs the command in this process."""

    def __init__(self, command: list[str], **_: Any) -> None:
        self.poll = partial(int, import_module(command[2]).main(command[3:]))


def budget(algorithm: Any, env_steps: int) -> int:
    """The env steps that a training gets instead of so many; searches have their own."""
    trained = getattr(algorithm, "policies", {"": algorithm}).values()
    for each in trained:
        if hasattr(each, "n_epochs"):
            each.n_epochs = 1  # all of them do the same
    with_replay = [each for each in trained if hasattr(each, "learning_starts")]
    for each in with_replay:
        each.learning_starts = min(each.learning_starts, LATEST_START)
    starts = [each.learning_starts for each in with_replay]
    if starts:
        env_steps = min(env_steps, max(starts) + UPDATES)
        if len(starts) == len(trained) and isinstance(algorithm, MultiAgentAlgorithm):
            most = max(1, env_steps // algorithm.env.num_envs)  # nobody needs whole iterations
            algorithm._loop.n_steps = min(algorithm._loop.n_steps, most)
        return env_steps
    return env_steps if env_steps == SHORT_SEARCH["timesteps"] else min(env_steps, MOST_ENV_STEPS)


def with_short_rollouts(config: Any) -> Any:
    """A run's configuration with rollouts of at most `MOST_ENV_STEPS`, where nothing is kept for replay."""

    def short(settings: dict[str, Any]) -> dict[str, Any]:
        most = max(1, MOST_ENV_STEPS // config.n_envs)
        return {**settings, "n_steps": min(settings["n_steps"], most)} if "n_steps" in settings else settings

    if is_off_policy(algorithm_info(config.algo).algorithm_class):
        return config
    policies = {name: short(settings) for name, settings in config.policy_settings.items()}
    return replace(config, hyperparameters=short(config.hyperparameters), policy_settings=policies)


@pytest.fixture
def short_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings, episodes and searches end early, of one seed, in this process; nothing else is changed."""
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
    from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

    from marl_sb3.envs import compiled
    from marl_sb3.evaluation import playing
    from marl_sb3.runs import building, jobs
    from marl_sb3.tools.examining import api as checkup
    from marl_sb3.tools.tuning import api, workers
    from marl_sb3.tools.tuning.search import Search

    def capped(learn: Callable[..., Any]) -> Callable[..., Any]:
        def learn_briefly(self: Any, total_timesteps: int, *args: Any, **kwargs: Any) -> Any:
            return learn(self, budget(self, total_timesteps), *args, **kwargs)

        return learn_briefly

    algorithms: tuple[type[MultiAgentAlgorithm | BaseAlgorithm], ...] = (
        MultiAgentAlgorithm, OnPolicyAlgorithm, OffPolicyAlgorithm,
    )  # fmt: skip
    for algorithm in algorithms:
        monkeypatch.setattr(algorithm, "learn", capped(algorithm.learn))
    algo, iterate = MultiAgentAlgorithm, MultiAgentAlgorithm.train_iteration
    monkeypatch.setattr(algo, "train_iteration", lambda self: (budget(self, MOST_ENV_STEPS), iterate(self))[1])
    height, width, _, *more = ArenaEnv.__init__.__defaults__ or ()
    monkeypatch.setattr(ArenaEnv.__init__, "__defaults__", (height, width, EPISODE_STEPS, *more))

    compare = compiled.require_same
    monkeypatch.setattr(
        compiled, "require_same", lambda env, steps, **more: compare(env, min(steps, MOST_COMPARED), **more)
    )

    count = playing.episodes_of_env
    for module in ("evaluation.playing", "runs.evaluate"):
        name = f"marl_sb3.{module}.episodes_of_env"
        monkeypatch.setattr(name, lambda *given: min(count(*given), MOST_EPISODES))

    with_rollouts = building.with_rollouts
    monkeypatch.setattr(building, "with_rollouts", lambda *given: with_short_rollouts(with_rollouts(*given)))

    prepare = api.prepare_study

    def prepare_short(*args: Any, **options: Any) -> Any:
        trials = {} if options.get("grid") else {"trials": 2 if options.get("sampler") == "pbt" else 1}
        return prepare(*args, **{**options, **SHORT_SEARCH, **trials})

    monkeypatch.setattr(api, "prepare_study", prepare_short)
    config_of = Search.config
    monkeypatch.setattr(Search, "config", lambda *given, **more: with_short_rollouts(config_of(*given, **more)))
    plan_race, whole_config = api.plan_race, Search.whole_config
    monkeypatch.setattr(api, "plan_race", lambda study, best, seeds: plan_race(study, 1, min(seeds, 2)))
    whole = {"n_timesteps": SHORT_SEARCH["timesteps"]}
    monkeypatch.setattr(Search, "whole_config", lambda self, settings: whole_config(self, settings).changed(whole))
    options = import_module("marl_sb3.commands.train").TrainOptions
    chosen_seeds = options.chosen_seeds
    monkeypatch.setattr(options, "chosen_seeds", lambda self: chosen_seeds(self)[:1])
    monkeypatch.setattr(workers, "is_trained_here", lambda *_: True)
    monkeypatch.setattr(jobs.Jobs, "run", lambda _, several, *__: [job() for job in several])
    monkeypatch.setattr(jobs, "subprocess", SimpleNamespace(Popen=TrainHere, DEVNULL=None))
    monkeypatch.setattr(jobs, "POLL_S", 0.0)
    monkeypatch.setattr(checkup, "examine", partial(checkup.examine, isolated=False, measure_s=0.0))


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run in the arena, which the pages call `runs/arena/<run>`."""
    folder = tmp_path_factory.mktemp("documentation") / "20260101-120000-abcd"
    short = f"--timesteps 600 --set n_steps={MOST_ENV_STEPS // 20} --set env.max_timesteps={EPISODE_STEPS}"
    assert run_command(f"python -m marl_sb3.train arena {short} --seed 0 --quiet --run-dir {folder}") == 0
    return folder


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")  # of pettingzoo.test itself
@pytest.mark.usefixtures("short_budgets", "one_onnx_registry", "quick_searches")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs_as_written(page: Path, trained_run: Path, in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(trained_run, in_tmp / "runs" / "arena" / trained_run.name)
    monkeypatch.syspath_prepend(in_tmp)
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{cell}\n" for cell in range(9)) * 20))  # a person plays
    run_page(page, in_tmp)


def what_is_wrong_with(block: Block) -> str | None:
    if block.language not in ("python", "bash", "yaml") and not block.is_shown and block.not_run is None:
        return f"{block}: {block.language!r} is a language that no test runs"
    return f"{block}: text is never run, and need not say so" if block.is_shown and block.not_run else None


def test_every_block_is_run_or_says_why_not() -> None:
    wrong = [what_is_wrong_with(block) for page in PAGES for block in blocks(page)]
    assert [words for words in wrong if words is not None] == []


def test_every_excuse_belongs_to_a_block() -> None:
    for page in PAGES:
        excuses = sum(line.startswith("<!-- not run") for line in page.read_text(encoding="utf-8").splitlines())
        assert excuses == sum(block.not_run is not None for block in blocks(page)), page


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    commands = [line for block in blocks(ROOT / "README.md") if block.language == "bash" for line in block.commands()]
    (test_command,) = [line for line in commands if "pytest" in line]
    assert test_command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def dead_links(page: Path) -> list[str]:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith(("http://", "https://"))]
    return [f"{page}: {link}" for link in local if not (page.parent / link).exists()]


def test_links_lead_to_files() -> None:
    assert [link for page in PAGES for link in dead_links(page)] == []


def test_generated_pages_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    pages = runpy.run_path(str(ROOT / "docs" / "generate.py"))["all_pages"]()
    stale = [name for name, text in pages.items() if (ROOT / "docs" / name).read_text(encoding="utf-8") != text]
    assert stale == [], "write them anew: python docs/generate.py"


def test_pages_of_algorithms_begin_with_a_command_and_explain_each_hyperparameter() -> None:
    for name, info in ALGORITHMS.items():
        page = ROOT / "docs" / "algorithms" / f"{name}.md"
        command, lines = blocks(page)[0], page.read_text(encoding="utf-8").splitlines()
        assert command.is_run, page
        assert lines.index("```bash") == 4, page  # after the title and a paragraph
        assert f"--algo {name} " in command.commands()[-1], page
        explained = {row[0].strip("| `"): row[2] for row in (line.split(" | ") for line in lines) if len(row) == 4}
        assert [each for each in info.kinds if not explained.get(each)] == [], page


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


def rooms_of_picture(picture: str) -> set[str]:
    """The rooms in the left column, such as `core.acting` for `  acting` below `core/`."""
    rooms, folder = set(), ""
    for line in picture.splitlines():
        names = line.strip().partition("  ")[0]
        if not line.startswith(" "):
            folder = f"{names[:-1]}." if names.endswith("/") else ""
        if names and not names.startswith("="):
            rooms |= {names[:-1]} if names.endswith("/") else {folder + name for name in names.split(", ")}
    return rooms


def test_the_picture_has_every_room() -> None:
    picture = next(block.text for block in blocks(ROOT / "docs" / "how_it_is_built.md") if block.language == "text")
    assert rooms_of_picture(picture) == set(RANK).difference(COMMANDS)  # each of which runs the module in `commands`


def test_files_are_where_how_it_is_built_says() -> None:
    named = re.findall(r"`([\w./]+(?:\.py|\.pyi|/))`", text_of("how_it_is_built.md"))
    bare = {"__init__.pyi", "builtin.py", "separate_envs.py"}  # beside the one that is named before
    roots = (ROOT, ROOT / "marl_sb3")
    assert [name for name in named if name not in bare and not any((root / name).exists() for root in roots)] == []


FOLDERS = ("benchmarks", "docs", "examples", "hparams", "marl_sb3", "tests")


def test_files_and_tests_that_pages_name_are_there() -> None:
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        files = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)", text)
        assert [name for name in files if not (ROOT / name).exists()] == [], page
        named = re.findall(r"`(test_\w+)`", text)
        assert [name for name in named if f"def {name}(" not in tests] == [], page


def test_the_library_example_does_what_it_promises(in_tmp: Path) -> None:
    (example,) = [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]
    namespace: dict[str, Any] = {}
    exec(example, namespace)
    assert namespace["metrics"]["episode_return_mean"] > 15
