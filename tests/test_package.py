"""The package itself: its names, and `python -m marl_sb3`."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import marl_sb3
from marl_sb3.__main__ import main
from marl_sb3.cli import COMMANDS
from marl_sb3.extensions.fast.builtin import ALGORITHMS

FUNCTIONS = {"train": "marl_sb3.runs.train", "tune": "marl_sb3.tools.tuning.api"}
ORDERS = {
    "attribute": "import marl_sb3; found = marl_sb3.{}",
    "from": "from marl_sb3 import {} as found",
    "module, then attribute": "import marl_sb3.{0}; found = marl_sb3.{0}",
    "module under a name": "import marl_sb3.{} as found",
    "command, then from": "from marl_sb3.{0} import main; from marl_sb3 import {0} as found",
    "attribute, then module": "import marl_sb3; marl_sb3.{0}; import marl_sb3.{0}; found = marl_sb3.{0}",
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_name_that_is_a_command_too_is_the_function(name: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a fresh process: neither the function nor the module of the command has been used.
    monkeypatch.delitem(sys.modules, f"marl_sb3.{name}", raising=False)
    monkeypatch.delitem(vars(marl_sb3), name, raising=False)
    names: dict[str, Any] = {}
    exec(ORDERS[order].format(name), names)
    assert names["found"] is getattr(importlib.import_module(FUNCTIONS[name]), name)
    assert callable(importlib.import_module(f"marl_sb3.{name}").main)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_help_of_a_command_lists_every_algorithm(name: str) -> None:
    parser = importlib.import_module(f"marl_sb3.{name}").main.parser()
    option = next(action for action in parser._actions if action.dest == "algo")
    *others, last = ALGORITHMS
    assert (
        option.help
        == f"algorithm: {', '.join(others)} or {last}; or package.module:NAME of an AlgorithmInfo; default: ppo"
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_and_signature_are_those_of_the_function(name: str) -> None:
    function = getattr(marl_sb3, name)
    assert inspect.isfunction(function)
    parameters = inspect.signature(function).parameters
    assert next(iter(parameters)) == "env"
    assert "timesteps" in parameters
    assert not any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
    shown = pydoc.render_doc(function, renderer=pydoc.plaintext)
    assert shown.startswith(f"Python Library Documentation: function {name} in module {FUNCTIONS[name]}")
    assert f"{name}(env: " in shown
    assert "Raises:" in shown


def test_every_exported_name_is_there_and_documented() -> None:
    for name in marl_sb3.__all__:
        assert inspect.getdoc(getattr(marl_sb3, name)), name
    assert set(marl_sb3.__all__) <= set(dir(marl_sb3))


def test_the_import_takes_no_torch() -> None:
    heavy = "{'torch', 'optuna', 'numba', 'sb3_contrib'}"
    code = f"import sys, marl_sb3.train, marl_sb3.__main__; print({heavy} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


# python -m marl_sb3


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    for name in COMMANDS:
        description = importlib.import_module(f"marl_sb3.{name}").main.description
        assert any(line.split(None, 1) == [name, description] for line in shown.splitlines()), name
    assert max(map(len, shown.splitlines())) <= 80


def test_a_command_gets_what_follows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "arenaa"]) == 2
    assert "unknown env 'arenaa'; did you mean arena?" in capsys.readouterr().err


def test_the_script_is_the_module() -> None:
    scripts = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"marl-sb3": f"{main.__module__}:{main.__name__}"}


def test_a_command_imports_no_other_one() -> None:
    code = (
        "import sys; from marl_sb3.__main__ import main\n"
        "others = {'marl_sb3.commands.tune', 'marl_sb3.commands.evaluate', 'torch'}\n"
        "try: main(['train', '--help'])\n"
        "except SystemExit: print(*sorted(others & set(sys.modules)), '.')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "."


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--version"], 0, f"marl_sb3 {marl_sb3.__version__}"),
        (["tain"], 2, "argument COMMAND: invalid choice: 'tain' (choose from"),
        (["train", "--help"], 0, "usage: python -m marl_sb3.train"),
    ],
)
def test_what_leaves_at_once(arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == code
    assert words in "".join(capsys.readouterr())


def test_trainings_import_nothing_heavy_that_they_do_not_use_and_multiply_matrices_in_one_thread(in_tmp: Path) -> None:
    """PyTorch's compiler alone takes over a second; threads that share small products mostly wait for each other."""
    code = (
        "import sys; from marl_sb3.train import main; from marl_sb3.core.training.loop import TrainingLoop\n"
        "from threadpoolctl import threadpool_info\n"
        "iterate = TrainingLoop.iterate\n"
        "def observed(*arguments):\n"
        "    report = iterate(*arguments)\n"
        "    print({each['num_threads'] for each in threadpool_info() if each['user_api'] == 'blas'})\n"
        "    return report\n"
        "TrainingLoop.iterate = observed\n"
        "for options in (['--algo=dqn', '--set=learning_starts=10'], ['--set=n_steps=40']):\n"
        "    main(['arena', '--timesteps=80', '--n-envs=2', '--set=batch_size=80', '--quiet', *options])\n"
        "import marl_sb3.evaluate, marl_sb3.export, marl_sb3.imitate, marl_sb3.tune, marl_sb3.doctor\n"
        "unused = {'torch._dynamo', 'optuna', 'onnx', 'plotly', 'matplotlib', 'pandas', 'sb3_contrib'}\n"
        "unused |= {'starlette', 'uvicorn', 'websockets', 'marl_sb3.commands.serve'}  # what only servers need\n"
        "print(*sorted(unused & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    of_dqn, _, of_ppo, _, imported = done.stdout.splitlines()
    assert (of_dqn, of_ppo, imported) == ("{1}", "{1}", "")
