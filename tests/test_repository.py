"""The files for those who keep this repository: workflows, containers, forms. No network, and none of their tools."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from documentation import ROOT, blocks

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CPU_BUILD = """pip install "$(grep '^torch==' constraints.txt)" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}"""


def workflow(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    return loaded


def steps(loaded: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in loaded["jobs"].values() for step in job["steps"]]


def commands(page: str) -> list[str]:
    found = [line for block in blocks(ROOT / page) if block.language == "bash" for line in block.commands()]
    return [line.partition("  #")[0].strip() for line in found]


def test_workflows_test_the_pythons_that_are_promised() -> None:
    jobs = workflow("tests.yml")["jobs"]
    tested = [job["strategy"]["matrix"]["python"] for job in jobs.values() if "strategy" in job]
    assert tested == [["3.11", "3.12", "3.13"]] * len(tested)
    assert PYPROJECT["project"]["requires-python"] == f">={tested[0][0]}"
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(PYPROJECT["project"]["classifiers"]))
    assert promised
    assert set(promised) <= set(tested[0])


def test_workflows_run_the_commands_of_the_pages() -> None:
    jobs = workflow("tests.yml")["jobs"]
    (of_readme,) = [line for line in commands("README.md") if "pytest" in line]
    (checks,) = [line for line in commands("CONTRIBUTING.md") if line.startswith("ruff")]
    run = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert run["linux"] == [CPU_BUILD, of_readme]
    assert run["systems"] == [CPU_BUILD, of_readme.partition(" && ")[0], "bash .ci/chosen"]
    assert run["versions"] == ["bash .ci/versions"]
    assert checks in run["checks"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_trust_as_little_as_they_can(path: Path) -> None:
    """Actions are commits and not tags, which can be moved; a job gets the permissions that it names, and no more."""
    loaded = workflow(path.name)
    assert loaded["permissions"] == {}
    used = [line.split("uses: ")[1] for line in path.read_text(encoding="utf-8").splitlines() if "uses: " in line]
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
    checkouts = [step for step in steps(loaded) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"] == {"persist-credentials": False} for step in checkouts)


def test_files_that_workflows_name_exist() -> None:
    text = "\n".join(step["run"] for path in WORKFLOWS for step in steps(workflow(path.name)) if "run" in step)
    named = set(re.findall(r"(?<![\w/])(?:\.ci/\w+|docs|[\w.]+\.(?:txt|toml|py))(?![\w/=])", text))
    assert {".ci/chosen", ".ci/versions", "constraints.txt", "docs", "pyproject.toml"} <= named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_chosen_tests_exist() -> None:
    named = re.findall(r"tests/[\w/.]+", (ROOT / ".ci" / "chosen").read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_forms_and_dependabot_are_yaml() -> None:
    forms = [
        yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / ".github").glob("ISSUE_TEMPLATE/*.yml")
    ]
    assert sorted(form.get("name", "") for form in forms) == ["", "Something goes wrong", "Something is missing"]
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text(encoding="utf-8"))["updates"]
    assert {update["package-ecosystem"] for update in updates} == {"pip", "github-actions", "docker"}


def test_the_container_installs_as_the_readme_does() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert f"RUN {CPU_BUILD}" in lines
    (first,) = [line for line in commands("README.md") if "pip install" in line and "marl_sb3.train" in line]
    (install,) = [line.removeprefix("RUN ") for line in lines if "'.[" in line]
    extras = re.search(r"'\.\[(.+)\]'", install)
    assert extras is not None
    assert first.startswith(install.replace(f"'{extras[0][1:-1]}'", "."))
    assert set(extras[1].split(",")) <= set(PYPROJECT["project"]["optional-dependencies"])
    assert 'ENTRYPOINT ["marl-sb3"]' in lines
    assert set(PYPROJECT["project"]["scripts"]) == {"marl-sb3"}
    assert "marl_sb3 train arena" in "\n".join(lines)  # README: the same as python -m marl_sb3.train arena


def test_the_container_gets_what_it_copies_and_the_build_needs() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    assert [name for name in copied if not (ROOT / name).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    build = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = PYPROJECT["project"]
    needed = [*build["packages"], *build["force-include"], project["readme"], *project["license-files"]]
    assert [name for name in needed if not any(fnmatch.fnmatch(name, each) for each in copied)] == []


def test_the_development_container_is_set_up_as_contributing_says() -> None:
    made = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    (install,) = [line for line in commands("CONTRIBUTING.md") if line.startswith("pip install")]
    assert made["postCreateCommand"] == f"{CPU_BUILD} && {install}"
