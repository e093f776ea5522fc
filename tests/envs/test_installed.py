"""Envs that installed packages bring: by entry points, or as modules of packages that are known."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from marl_sb3 import make_vec_env
from marl_sb3.core.envs.registry import module_id
from marl_sb3.envs.finding import importable_id, named_factory
from marl_sb3.errors import ConfigError, EnvRaisedError
from marl_sb3.evaluate import main as evaluate_main
from marl_sb3.train import main as train_main

POINTS = {
    "toy/script-v0": "toy_plugin:Env",
    "toy/lost-v0": "toy_plugin:NoSuchEnv",
    "toy/lacking-v0": "no_such_package:Env",
    "toy/number-v0": "toy_plugin:NUMBER",
    "toy/faulty-v0": "toy_faulty:Env",
    "CartPole-v1": "no_such_package:Env",
}

POLE = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
REGISTERS = f"import gymnasium\nregister = lambda: gymnasium.register('old/Pole-v0', {POLE!r})\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, with one that brings the envs above."""
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "toy_plugin", POINTS)
    (tmp_path / "toy_plugin.py").write_text("from marl_sb3.envs.arena import ArenaEnv as Env\nNUMBER = 3\n" + REGISTERS)
    (tmp_path / "toy_faulty.py").write_text("x = [][0]\n")
    importlib.invalidate_caches()
    return tmp_path


def install(site: Path, name: str, points: dict[str, str]) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    mine = "".join(f"{k} = {v}\n" for k, v in points.items())
    (info / "entry_points.txt").write_text(f"[marl_sb3.envs]\n{mine}[gymnasium.envs]\nold = toy_plugin:register\n")


def refusal(env: str) -> str:
    with pytest.raises(ConfigError) as caught:
        make_vec_env(env)
    assert caught.value.key == "env"
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:The old environment creation API")
@pytest.mark.parametrize(
    ("name", "env_id", "vec_env"),
    [
        ("mpe2.simple_spread_v3", "mpe2/simple_spread-v3", "BatchedVecEnv"),
        ("pettingzoo.sisl.pursuit_v5", "sisl/pursuit-v5", "SyncVecEnv"),
        ("pettingzoo.classic.tictactoe_v3", "classic/tictactoe-v3", "SyncVecEnv"),
    ],
)
def test_a_module_as_pettingzoo_names_envs_is_one(name: str, env_id: str, vec_env: str) -> None:
    module: Any = importlib.import_module(name)
    assert type(make_vec_env(module)).__name__ == vec_env
    assert type(make_vec_env(module_id(module))).__name__ == vec_env
    assert named_factory(module) == (env_id, None)


def test_every_command_knows_an_env_of_an_installed_package(
    site: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
):
    small = ["--set", "n_steps=6", "--set", "batch_size=6", "--timesteps", "12", "--seed", "1"]
    assert train_main(["toy/script-v0", *small, "--run-dir", "run", "--quiet"]) == 0
    assert evaluate_main(["run", "--episodes", "2"]) == 0
    assert train_main(["--resume", "run", "--timesteps", "24", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert importable_id("toy/script-v0") == "toy/script-v0"


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ("toy/lost-v0", "toy_plugin:NoSuchEnv of toy_plugin: cannot import it: module 'toy_plugin' has no attribute"),
        ("toy/lacking-v0", "no_such_package:Env of toy_plugin: cannot import it: No module named 'no_such_package'"),
        ("toy/number-v0", "toy_plugin:NUMBER of toy_plugin: it is 3; accepted: a class or a function that makes"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_refused(site: Path, env: str, problem: str):
    assert refusal(env).startswith(f"env {env!r}, entry point {problem}")


def test_a_package_that_raises_when_imported_is_told_with_its_line(site: Path):
    words = r"^env 'toy/faulty-v0', entry point toy_faulty:Env of toy_plugin: importing it raised IndexE.*line 1, in"
    with pytest.raises(EnvRaisedError, match=words):
        make_vec_env("toy/faulty-v0")


def test_envs_that_a_package_registers_by_the_entry_point_of_gymnasium_0_are_found(site: Path):
    assert make_vec_env("toy_plugin:old/Pole-v0").agents == ("agent",)


def test_an_id_of_two_packages_is_refused(site: Path):
    install(site, "other_plugin", {"toy/script-v0": "other_plugin:Env"})
    importlib.invalidate_caches()
    words = refusal("toy/script-v0")
    assert words.startswith("several installed packages have an env 'toy/script-v0': ")
    assert "toy_plugin:Env of toy_plugin" in words
    assert "other_plugin:Env of other_plugin" in words


def test_entry_points_come_last_and_are_among_the_known_ids(site: Path):
    assert make_vec_env("CartPole-v1").agents == ("agent",)
    assert refusal("toy/scirpt-v0").startswith("unknown env 'toy/scirpt-v0'; did you mean toy/script-v0")


@pytest.fixture
def mpe2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of that name, whether or not it is installed."""
    for name in [name for name in sys.modules if name.split(".")[0] == "mpe2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mpe2").mkdir()
    (tmp_path / "mpe2" / "__init__.py").touch()
    (tmp_path / "mpe2" / "simple_spread_v3.py").write_text("from toy_envs import ScriptedEnv as parallel_env\n")
    (tmp_path / "mpe2" / "simple_tag_v3.py").write_text("import no_such_package\n")
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "mpe2"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("env", ["mpe2/simple_spread-v3", "mpe2/simple_spread_v3"])
def test_a_module_of_a_known_package_is_an_env(mpe2: None, env: str):
    assert make_vec_env(env).agents == ("a", "b")


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ("mpe2/simple_spread-v2", "mpe2 has no such env; did you mean mpe2/simple_spread-v3?"),
        ("mpe2/simple_tag-v3", "cannot import 'mpe2.simple_tag_v3': No module named 'no_such_package'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused(mpe2: None, env: str, problem: str):
    assert refusal(env) == f"env {env!r}: {problem}"


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "magent2", None)
    problem = "the package magent2 is not installed: pip install magent2"
    assert refusal("magent2/battle-v4") == f"env 'magent2/battle-v4': {problem}"
