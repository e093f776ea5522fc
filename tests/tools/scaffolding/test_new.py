"""`python -m marl_sb3.new`: what it writes works as it is; what it refuses."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
from documentation import blocks, run_command
from refusals import refusal

from marl_sb3.new import main
from marl_sb3.tools.scaffolding import KINDS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:pettingzoo.test.api_test")
def test_a_new_env_passes_its_own_tests_and_trains_by_the_commands_of_its_page(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    name = f"new_{kind}"
    assert main([name, "--kind", kind]) == 0
    monkeypatch.chdir(name)
    monkeypatch.syspath_prepend(in_tmp / name)
    tests = vars(importlib.import_module(f"test_{name}"))
    for test in (tests[each] for each in tests if each.startswith("test_")):
        test(*([in_tmp] if inspect.signature(test).parameters else []))
    settings = Path("settings.yml")
    settings.write_text(settings.read_text().replace("n_timesteps: 40000", "n_timesteps: 600"))
    (page,) = blocks(Path("README.md").absolute())
    by_pytest, doctor, *commands = page.commands()
    assert by_pytest == "python -m pytest"
    assert doctor == f"python -m marl_sb3.doctor {name}:New{kind.title()}Env"  # which has examined it in its tests
    assert [run_command(line) for line in commands] == [0, 0]
    assert "marl_sb3." not in Path(f"{name}.py").read_text()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a-b", "NAME is 'a-b'; accepted: a name for a module of Python, such as my_env"),
        ("class", "NAME is 'class'; accepted: a name for a module of Python"),
        ("random", "NAME is 'random', which Python imports already; accepted: a name of no module"),
        ("x" * 300, f"NAME is '{'x' * 219}; accepted: a printable name of at most 220 bytes"),
        ("aux", "NAME is 'aux'; accepted: a printable name"),
        ("my_env --out file/x", "--out: cannot write to file/x: Not a directory"),
        ("my_env --out file", "file exists; accepted: a folder that does not exist yet, after --out"),
        (f"my_env --out {'y' * 300}", "File name too long"),
        ("my_env --out /proc/1/task/x", "--out: cannot write to /proc/1/task/x: "),
        ("pettingzoo", "NAME is 'pettingzoo', which Python imports already"),
        ("there", "there exists; accepted: a folder that does not exist yet, after --out"),
    ],
)
def test_a_name_that_python_would_not_import_and_a_folder_that_exists_are_refused(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    Path("there").mkdir()
    Path("file").touch()
    assert message in refusal(main, name.split(), capsys)
    assert {str(path) for path in Path().iterdir()} == {"there", "file"}


def test_a_name_that_holds_that_of_the_class_is_kept(in_tmp: Path) -> None:
    assert main(["ExampleEnvX"]) == 0
    text = Path("ExampleEnvX", "test_ExampleEnvX.py").read_text()
    assert "from ExampleEnvX import LEFT, RIGHT, STAY, ExampleEnvXEnv" in text
