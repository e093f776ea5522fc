"""From an env id to an env: every kind of id, and every way in which one can be wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import pytest
from pettingzoo import AECEnv, ParallelEnv
from toy_envs import ScriptedEnv

from marl_sb3 import make_vec_env, register_env
from marl_sb3.core.envs.registry import REGISTERED, env_factory, make_env, why_not_batched
from marl_sb3.doors import ENV_FINDERS, EnvFinder
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.envs.finding import importable_id
from marl_sb3.errors import ConfigError, EnvRaisedError


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test finds in its working directory is gone after it."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    registries = (pettingzoo.parallel_registry, pettingzoo.aec_registry, gymnasium.registry)
    before = [dict(envs) for envs in registries]
    yield
    for envs, known in zip(registries, before, strict=True):
        envs.clear()
        envs.update(known)


def made(env: Any, **kwargs: Any) -> ParallelEnv:
    return make_env(env_factory(env), 0, kwargs)


def refusal(env: Any, **kwargs: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        make_vec_env(env, **kwargs)
    return caught.value


# Ids


@pytest.mark.parametrize(
    ("env_id", "unwrapped", "agents"),
    [
        ("arena", ArenaEnv, ["agent1", "agent2"]),
        ("marl_sb3/arena-v0", ArenaEnv, ["agent1", "agent2"]),
        ("marl_sb3/arena", ArenaEnv, ["agent1", "agent2"]),
        ("classic/rps-v2", AECEnv, ["player_0", "player_1"]),
        ("CartPole-v1", ParallelEnv, ["agent"]),
        ("Pendulum-v1", ParallelEnv, ["agent"]),
        ("toy_envs:ScriptedEnv", ScriptedEnv, ["a", "b"]),
        ("pettingzoo.classic.rps.rps:env", AECEnv, ["player_0", "player_1"]),
    ],
)
def test_id_of_every_kind_makes_a_parallel_env_that_steps(env_id, unwrapped, agents):
    env = made(env_id)
    assert isinstance(env, ParallelEnv)
    assert isinstance(env.unwrapped, unwrapped)
    assert env.possible_agents == agents
    vec = make_vec_env(env_id, n_envs=2, seed=0)
    vec.reset()
    taken = vec.step((np.array([[vec.groups[0].action_space.sample() for _ in agents] for _ in range(2)]),))
    assert taken.acted.all()


def test_arena_is_in_pettingzoos_registry_as_soon_as_marl_sb3_is_imported():
    program = (
        "import sys, marl_sb3, pettingzoo\n"
        "env = pettingzoo.make('parallel', 'marl_sb3/arena-v0', height=3)\n"
        "print(type(env).__name__, env.height, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ArenaEnv 3 False\n", "")


def test_env_that_only_the_aec_registry_has_is_converted():
    pettingzoo.register("aec", "toy/rps-v0", entry_point="pettingzoo.classic.rps.rps:env")
    vec = make_vec_env("toy/rps-v0", n_envs=2, seed=0, max_cycles=3)
    vec.reset()
    steps = [vec.step((np.array([[0, 1], [2, 2]]),)) for _ in range(3)]
    assert steps[0].rewards.tolist() == [[-1, 1], [0, 0]]
    assert [taken.episode_done.all() for taken in steps] == [False, False, True]
    assert steps[2].truncated.all()


def test_gymnasium_env_with_a_keyword_argument_gets_it():
    vec = make_vec_env("CartPole-v1", max_episode_steps=2, sutton_barto_reward=True)
    vec.reset()
    steps = [vec.step((np.zeros((1, 1), int),)) for _ in range(2)]
    assert [taken.rewards.item() for taken in steps] == [0, 0]
    assert steps[1].truncated.all()


def _lacking_in_pettingzoo() -> str:
    pettingzoo.register("parallel", "toy/lacking-v0", entry_point="no_such_package.envs:parallel_env")
    return "toy/lacking-v0"


def _lacking_in_aec() -> str:
    pettingzoo.register("aec", "toy/lacking-v0", entry_point="no_such_package.envs:env")
    return "toy/lacking-v0"


def _lacking_in_gymnasium() -> str:
    def entry_point() -> None:
        raise gymnasium.error.DependencyNotInstalled("run `pip install 'pettingzoo[toy]'`")

    gymnasium.register("ToyLacking-v0", entry_point=entry_point)
    return "ToyLacking-v0"


def _lacking_when_made() -> str:
    def factory() -> None:
        raise ImportError("pip install 'pettingzoo[toy]'")

    register_env("lacking", factory)
    return "lacking"


@pytest.mark.parametrize(
    "register", [_lacking_in_pettingzoo, _lacking_in_aec, _lacking_in_gymnasium, _lacking_when_made]
)
def test_missing_package_is_answered_with_what_to_install(register):
    error = refusal(register())
    assert "pip install 'pettingzoo[toy]'" in str(error)
    assert error.key == "env"


def test_missing_extra_of_pettingzoo_is_answered_with_its_name(monkeypatch: pytest.MonkeyPatch):
    # As if its dependencies were missing, whether they are or not.
    monkeypatch.setitem(sys.modules, "pettingzoo.sisl.pursuit.pursuit", None)
    assert "pip install 'pettingzoo[sisl]'" in str(refusal("sisl/pursuit-v5"))


# package.module:factory


def test_factory_is_imported_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "my_envs.py").write_text(
        "from toy_envs import ScriptedEnv\n\ndef short(steps):\n    return ScriptedEnv({'a': (steps, 'truncated')})\n"
    )
    monkeypatch.chdir(tmp_path)
    assert made("my_package.my_envs:short", steps=4).script == {"a": (4, "truncated")}
    assert "unknown env argument 'width'; the env takes: steps" in str(refusal("my_package.my_envs:short", width=1))


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no_such_module:env", "cannot import 'no_such_module': No module named 'no_such_module'"),
        (
            "toy_envs:no_such_env",
            "module 'toy_envs' has no 'no_such_env', and has registered no env of this id; "
            "accepted: package.module:factory or package:ENV_ID",
        ),
        (
            "toy_envs:scriptedEnv",
            "module 'toy_envs' has no 'scriptedEnv', and has registered no env of this id; did you mean ScriptedEnv?",
        ),
        (
            "toy_envs:",
            "module 'toy_envs' has no '', and has registered no env of this id; "
            "accepted: package.module:factory or package:ENV_ID",
        ),
        ("toy_envs:np", "'np' cannot be called; accepted: package.module:factory"),
        (":env", "'' names no module; accepted: package.module:factory"),
        (".toy_envs:env", "'.toy_envs' names no module; accepted: package.module:factory"),
        ("ALE/Pong:v5", "'ALE/Pong' names no module; accepted: package.module:factory"),
    ],
)
def test_path_that_leads_nowhere_is_refused(path, problem):
    error = refusal(path)
    assert str(error) == f"env {path!r}: {problem}"
    assert error.key == "env"


# Factories


def test_registered_factory_is_found_by_name_and_a_later_one_replaces_it():
    register_env("toy", lambda: ScriptedEnv(infos=True))
    register_env("toy", ScriptedEnv)
    assert made("toy", infos=False).with_infos is False


@pytest.mark.parametrize(
    ("name", "factory", "problem"),
    [
        ("arena", ScriptedEnv, "the env id 'arena' is built in; choose another name"),
        ("toy", ScriptedEnv.metadata, "the factory of env 'toy' is {'name': 'scripted_v0'"),
    ],
)
def test_registration_that_cannot_work_is_refused(name, factory, problem):
    with pytest.raises(ConfigError) as caught:
        register_env(name, factory)
    assert str(caught.value).startswith(problem)
    assert name not in REGISTERED


class Shelf(EnvFinder):
    """A finder of one env, in the user's own code."""

    def find(self, env_id: str) -> Any:
        return ScriptedEnv if env_id == "shelf/3" else None

    def known_ids(self) -> list[str]:
        return ["shelf/3"]

    def meant(self, name: str, mine: Sequence[str]) -> str:
        return "shelf/3, the only one" if name.startswith("shelf") else ""


def test_a_finder_at_the_door_finds_and_suggests_envs(monkeypatch):
    monkeypatch.setattr(ENV_FINDERS, "_added", {**ENV_FINDERS.added(), "shelf": Shelf()})
    assert isinstance(made("shelf/3"), ScriptedEnv)
    with pytest.raises(
        ConfigError, match=r"^unknown env 'shelf/4'; did you mean shelf/3, the only one\? Known: .*shelf/3"
    ):
        env_factory("shelf/4")


def test_factory_that_asks_for_the_env_index_is_told_it_and_no_other_is():
    def plain(infos=True):
        return ScriptedEnv(infos=infos)

    told = make_vec_env(ScriptedEnv, n_envs=2).call("env_index", [0, 1])
    assert (told, make_vec_env(plain, n_envs=2).call("env_index", [0, 1])) == ([0, 1], [0, 0])
    assert make_vec_env(ScriptedEnv, n_envs=2, env_index=5).call("env_index", [0, 1]) == [5, 5]


def needs_height(height):
    return ScriptedEnv()


def takes_nothing():
    return ScriptedEnv()


@pytest.mark.parametrize(
    ("env", "kwargs", "problem", "key"),
    [
        ("arena", {"hight": 3}, "unknown env argument 'hight'; the env takes: height, width, max_t", "env.hight"),
        (needs_height, {}, "needs_height: missing a required argument: 'height'; it takes: height", "env"),
        (takes_nothing, {"height": 3}, "unknown env argument 'height'; the env takes: none", "env.height"),
        ("CartPole-v1", {"hight": 3}, "the env does not take these arguments: ", "env"),
        ("classic/rps-v2", {"hight": 3}, "the env does not take these arguments: ", "env"),
        (
            "CartPole-v1",
            {"vec_env_cls": 3},
            r"the env does not take these .* n_workers=4 .* see docs/coming_from/sb3",
            "env",
        ),
        ("arena", {"monitor_dir": "x"}, "unknown env argument 'monitor_dir'; .*; every training", "env.monitor_dir"),
        ("arena", {"height": 0}, "height must be an integer >= 1; received 0", "env.height"),
        *(
            ("arena", {"n_envs": n_envs}, f"n_envs is {n_envs}; accepted: an integer from 1 to 2147483647", "n_envs")
            for n_envs in (0, True, 2**63, 2.0)
        ),
        ("arena", {"vectorizer": "ray"}, "unknown vectorizer 'ray'; accepted: auto, ", "vectorizer"),
        (3, {}, "env is 3; accepted: an id or a factory of a pettingzoo.ParallelEnv", "env"),
    ],
)
def test_wrong_arguments_are_refused_by_name(env, kwargs, problem, key):
    error = refusal(env, **kwargs)
    assert re.match(problem, str(error).removeprefix(f"env {__name__}:"))
    assert error.key == key


def test_an_env_is_named_as_the_user_has_named_it(monkeypatch):
    broken = gymnasium.register("broken-v0", lambda: 1 / 0)
    assert broken is None
    register_env("lambda", lambda: 1 / 0)
    register_env("number", lambda: 3)
    try:
        for env_id in ("broken-v0", "lambda"):
            with pytest.raises(EnvRaisedError, match=f"^env 0: making {env_id} raised ZeroDivisionError"):
                make_vec_env(env_id)
        assert str(refusal("number")).startswith("number makes an object of builtins.int; accepted: ")
    finally:
        gymnasium.registry.pop("broken-v0")


def test_an_env_that_finds_no_display_is_told_of_xvfb():
    def faulty():
        raise RuntimeError("cannot connect to the Display")

    with pytest.raises(EnvRaisedError, match=r", in faulty\); without a display, xvfb-run before the command helps$"):
        make_vec_env(faulty)


def test_error_inside_a_factory_is_told_with_its_line():
    def faulty():
        return ScriptedEnv() + 1

    with pytest.raises(EnvRaisedError, match=r"^env 0: making .*faulty raised TypeError: unsupp.*") as caught:
        make_vec_env(faulty)
    assert re.search(r"\(\S*test_registry\.py, line \d+, in faulty\)$", str(caught.value))
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize(
    ("folder", "place"),
    [("mine", r"mine/faulty_module\.py, line 2, in <module>"), ("site-packages", r".*/decoder\.py, .*")],
)
def test_an_error_while_importing_is_told_with_the_users_line_or_the_innermost(
    folder: str, place: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
):
    (in_tmp / folder).mkdir()
    (in_tmp / folder / "faulty_module.py").write_text("import json\njson.loads('x')\n")
    monkeypatch.syspath_prepend(str(in_tmp / folder))
    words = rf"env 'faulty_module:make': importing 'faulty_module' raised JSONDecodeError: .* \({place}\)"
    with pytest.raises(EnvRaisedError, match=words):
        make_vec_env("faulty_module:make")


class Corridor(gymnasium.Env):
    """Walk to the right end."""

    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, slow=False):
        self.slow = slow

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return self.place, {}

    def step(self, action):
        self.place += int(action)
        return self.place, float(action), self.place == 3, False, {}


def test_factory_of_a_gymnasium_env_makes_an_env_with_one_agent():
    vec = make_vec_env(Corridor, n_envs=2, seed=0, slow=True)
    assert vec.agents == ("agent",)
    assert vec.call("slow", [1]) == [True]
    vec.reset()
    steps = [vec.step((np.ones((2, 1), int),)) for _ in range(3)]
    assert [taken.observations[0].tolist() for taken in steps] == [[[1], [1]], [[2], [2]], [[0], [0]]]
    assert steps[2].terminated.all()


def test_factory_that_returns_one_gymnasium_env_twice_is_refused():
    env = Corridor()
    assert "returned the same env twice" in str(refusal(lambda: env, n_envs=2))


def test_id_that_a_module_registers_when_it_is_imported_is_found(in_tmp: Path):
    (in_tmp / "corridors.py").write_text(
        "import gymnasium\nimport pettingzoo\n"
        "gymnasium.register('Corridor-v3', entry_point='test_registry:Corridor', max_episode_steps=2)\n"
        "pettingzoo.register('parallel', 'corridors/two-v0', entry_point='toy_envs:ScriptedEnv')\n"
    )
    vec = make_vec_env("corridors:Corridor-v3", slow=True)
    assert (vec.agents, vec.call("slow", [0])) == (("agent",), [True])
    vec.reset()
    assert [vec.step((np.zeros((1, 1), int),)).truncated.item() for _ in range(2)] == [False, True]
    assert make_vec_env("corridors:corridors/two-v0").agents == ("a", "b")


class OldEnv:
    """Has the methods of an env, and no class of one."""

    def reset(self): ...

    def step(self, action): ...


@pytest.mark.parametrize(
    ("product", "problem"),
    [
        (
            lambda: None,
            "makes an object of builtins.NoneType; accepted: a pettingzoo.ParallelEnv, a pettingzoo.AECEnv, ",
        ),
        (OldEnv, "OldEnv; accepted: a pettingzoo.ParallelEnv, a pettingzoo.AECEnv, a gymnasium.Env, "),
        (OldEnv, "; a class of one of these kinds can wrap it"),
    ],
)
def test_factory_of_something_else_is_refused(product, problem):
    assert problem in str(refusal(product))


# Unknown ids and the arguments of make_vec_env


@pytest.mark.parametrize(
    ("env_id", "start"),
    [
        (
            "arna",
            "unknown env 'arna'; did you mean arena? Known: arena, waterworld, toy, PettingZoo and Gymnasium ids;",
        ),
        ("CartPole-v9", "unknown env 'CartPole-v9'; did you mean CartPole-v1, "),
        ("sisl/pursuit-v4", "unknown env 'sisl/pursuit-v4'; did you mean sisl/pursuit-v5?"),
        ("qqq", "unknown env 'qqq'. Known: arena, waterworld, toy, PettingZoo and Gymnasium ids; or use package."),
        ("", "unknown env ''. Known: "),
        ("my_env.py", "unknown env 'my_env.py'; did you mean my_env:NAME, where NAME is the env's class or a function"),
        (r".\my_env.py", r"unknown env '.\\my_env.py'; did you mean my_env:NAME, where"),
        ("my_env.py:Maze", "env 'my_env.py:Maze': 'my_env.py' is a file; did you mean my_env:Maze?"),
        (r".\my_env.py:Maze", r"env '.\\my_env.py:Maze': '.\\my_env.py' is a file; did you mean my_env:Maze?"),
        (
            "simple_spread_v3",
            "unknown env 'simple_spread_v3'; did you mean mpe2/simple_spread-v3 of the package mpe2?",
        ),
        (
            "ALE/Pong-v5",
            "unknown env 'ALE/Pong-v5'; did you mean ale_py:ALE/Pong-v5 of the package ale_py, which has to be instal",
        ),
        ("FetchReach-v4", "unknown env 'FetchReach-v4'; did you mean gymnasium_robotics:FetchReach-v4 of the package"),
        ("connect_four", "unknown env 'connect_four'; did you mean classic/connect_four-v3?"),
    ],
)
def test_unknown_id_is_answered_with_close_ones(env_id, start):
    register_env("toy", ScriptedEnv)
    error = refusal(env_id)
    assert str(error).startswith(start)
    assert error.key == "env"


def test_an_id_of_a_package_that_is_installed_is_suggested_with_it(in_tmp: Path, monkeypatch) -> None:
    (in_tmp / "minigrid.py").touch()
    monkeypatch.syspath_prepend(in_tmp)
    assert "did you mean minigrid:MiniGrid-Empty-5x5-v0? Known" in str(refusal("MiniGrid-Empty-5x5-v0"))


def test_a_subclass_has_no_batched_twin_of_its_base() -> None:
    class Mine(ArenaEnv):
        pass

    class MineWithTwin(Mine):
        @classmethod
        def make_batched(cls, num_envs: int, **env_kwargs: Any) -> Any:
            return ArenaEnv.make_batched(num_envs, **env_kwargs)

    assert why_not_batched(ArenaEnv, {}) is None
    assert why_not_batched(env_factory("arena"), {}) is None
    assert why_not_batched(Mine, {}) is not None
    assert why_not_batched(MineWithTwin, {}) is None
    assert why_not_batched(partial(ArenaEnv, height=6), {}) is not None


def test_an_id_by_which_other_processes_find_an_env() -> None:
    class Hidden(ArenaEnv):
        pass

    assert importable_id("arena") == "arena"
    assert importable_id("a name", ScriptedEnv) == "toy_envs:ScriptedEnv"
    assert importable_id("a name", Hidden) is None
    register_env("mine", ScriptedEnv)
    assert importable_id("mine") == "toy_envs:ScriptedEnv"
    register_env("mine", lambda **kwargs: ScriptedEnv(**kwargs))  # noqa: PLW0108 - a function without a name
    assert importable_id("mine") is None
