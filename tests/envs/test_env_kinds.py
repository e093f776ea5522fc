"""What every kind of envs promises. One at the door `ENV_KINDS` joins these tests by a line of `EXAMPLES`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, RecordEpisodeStatistics
from other_kinds import Echo, Pair
from pettingzoo import AECEnv, ParallelEnv
from stable_baselines3.common.vec_env import DummyVecEnv
from supersuit import black_death_v3, pettingzoo_env_to_vec_env_v1
from toy_envs import ScriptedEnv

from marl_sb3 import make_vec_env, register_env
from marl_sb3.core.envs.converted import SingleAgentEnv
from marl_sb3.core.envs.registry import REGISTERED, env_factory, make_env
from marl_sb3.doors import ENV_FINDERS, ENV_KINDS, EnvKind
from marl_sb3.envs import tuples
from marl_sb3.errors import ConfigError

SPACE = spaces.Discrete(5)
KINDS = "an RLlib MultiAgentEnv, a Gymnasium env with n_agents and Tuple spaces or a Dial"


class Dial:
    """A user's env of an interface of its own: pays for turning by what is shown; three turns are an episode."""

    def __init__(self, size: int = 5) -> None:
        self.size, self.is_closed = size, False

    def spin(self, seed: int | None) -> int:
        self.rng, self.left = np.random.default_rng(seed), 3
        return self._shown()

    def turn(self, by: int) -> tuple[int, float, bool]:
        paid = float(by == self.value)
        self.left -= 1
        return self._shown(), paid, self.left == 0

    def _shown(self) -> int:
        self.value = int(self.rng.integers(self.size))
        return self.value


class DialEnv(ParallelEnv):
    """A dial as the env of one agent."""

    def __init__(self, dial: Dial) -> None:
        self.dial, self.possible_agents, self.agents = dial, ["hand"], []
        self.metadata: dict[str, Any] = {"name": "dial"}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return SPACE

    action_space = observation_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["hand"]
        return {"hand": self.dial.spin(seed)}, {"hand": {}}

    def step(self, actions: Mapping[str, Any]) -> Any:
        shown, paid, is_over = self.dial.turn(int(actions["hand"]))
        self.agents = [] if is_over else ["hand"]
        return {"hand": shown}, {"hand": paid}, {"hand": is_over}, {"hand": False}, {"hand": {}}

    def close(self) -> None:
        self.dial.is_closed = True


class DialKind(EnvKind):
    """The kind of dials: recognised by a method, and made by `factory(index, settings)` where it has these two."""

    what = "a Dial"

    def recognises(self, env: Any) -> bool:
        return hasattr(env, "spin")

    def as_parallel(self, env: Any) -> ParallelEnv:
        return DialEnv(env)

    def arguments(self, factory: Any, signature: Any, env_kwargs: Mapping[str, Any], env_index: int) -> Any:
        return (env_index, {**env_kwargs}) if list(signature.parameters) == ["index", "settings"] else None


@pytest.fixture(autouse=True)
def _with_dials() -> Iterator[None]:
    ENV_KINDS.add("dial", DialKind())
    yield
    ENV_KINDS.remove("dial")


# Kind at the door, or the class of envs that need none -> a factory of its envs; a new kind joins by a line.
EXAMPLES: dict[str | type, Callable[..., Any]] = {
    "rllib": Echo,
    "tuples": Pair,
    "dial": Dial,
    "dead agents act": lambda: black_death_v3(ScriptedEnv()),
    ParallelEnv: ScriptedEnv,
    "turns": env_factory("pettingzoo.classic.rps.rps:env"),
    "gymnasium": env_factory("FrozenLake-v1"),
}
AT_THE_DOOR = [name for name in EXAMPLES if isinstance(name, str)]


class EnvPool(gymnasium.Env[Any, Any]):
    """Looks like an env of EnvPool, whose spec has no id."""

    spec = all_env_ids = ()  # type: ignore[assignment]
    observation_space = action_space = SPACE


SEVERAL: dict[str, Callable[[], Any]] = {
    "SyncVectorEnv": lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"),
    "CartPoleVectorEnv": lambda: gymnasium.make_vec("CartPole-v1", 2),
    "DummyVecEnv": lambda: DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]),
    "EnvPool": EnvPool,
    "MarkovVectorEnv": lambda: pettingzoo_env_to_vec_env_v1(pettingzoo.make("parallel", "classic/rps-v2")),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_what_holds_several_envs_is_refused(name: str) -> None:
    for env in (SEVERAL[name], SEVERAL[name]()):
        with pytest.raises(
            ConfigError, match=f"is a {name}, which holds several envs; accepted: a factory of one env, "
        ):
            make_vec_env(env)


def test_an_env_of_gym_or_dm_env_is_refused_with_what_wraps_it() -> None:
    for module, way in ("gym.core", r"GymV26CompatibilityV0\(env=env\), or"), ("dm_env._environment", "DmControlC"):
        base = type("Env", (), {"__module__": module})
        with pytest.raises(ConfigError, match=f"env is a Maze of .*; accepted: .* shimmy.{way}.*pip install shimmy"):
            make_vec_env(type("Maze", (base,), {}))
        assert make_vec_env(type("Wrapped", (Pair, base), {})).agents == ("agent_0", "agent_1")


def test_dead_agents_that_act_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    tuples._warn_of_dead_agents.cache_clear()
    make_vec_env(lambda: black_death_v3(ScriptedEnv()), n_envs=2)
    (message,) = caplog.messages
    assert "SuperSuit's black_death: agents act and are trained after their end; leave it out" in message


def test_an_env_that_names_itself_is_no_wrapper() -> None:
    itself = type("Itself", (ScriptedEnv,), {"env": property(lambda env: env)})
    assert not ENV_KINDS["dead agents act"].recognises(itself())


def test_every_kind_at_the_door_is_tested() -> None:
    assert {*AT_THE_DOOR, "several"} == set(ENV_KINDS.names())


def original(name: str | type) -> Any:
    """An env as its factory makes it."""
    return Echo({}) if name == "rllib" else EXAMPLES[name]()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_env_is_recognised_by_its_own_kind_last(name: str | type) -> None:
    env = original(name)
    assert [kind for kind in ENV_KINDS.names() if ENV_KINDS[kind].recognises(env)][-1:] == [name] * (
        name in AT_THE_DOOR
    )


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.filterwarnings("ignore:.*render_mode")
def test_its_episodes_repeat_with_the_seed(name: str | type) -> None:
    assert isinstance(make_env(EXAMPLES[name], 0, {}), ParallelEnv)
    rollouts = []
    for _ in range(2):
        vec = make_vec_env(EXAMPLES[name], n_envs=2, seed=3)
        steps = [vec.reset()]
        for number in range(12):
            actions = [np.full((2, len(group.agents)), number % group.action_space.n) for group in vec.groups]
            steps.append(vec.step(actions))
        rollouts.append([(step.rewards.tolist(), step.to_act.tolist(), str(step.observations)) for step in steps])
        vec.close()
    assert rollouts[0] == rollouts[1]


@pytest.mark.parametrize("name", AT_THE_DOOR)
def test_factories_of_other_envs_are_called_by_name(name: str) -> None:
    calls = []

    def factory(size: int = 1, *, env_index: int) -> Any:
        calls.append((size, env_index))
        return original(name)

    make_env(factory, 4, {"size": 2})
    assert calls == [(2, 4)]


# --- A kind of one's own ----------------------------------------------------------------------------------------------


def test_factories_are_called_as_the_kind_says() -> None:
    made: list[Any] = []

    def factory(index: int, settings: Any) -> Dial:
        made.append((index, settings))
        return Dial(**settings)

    env = make_env(factory, 2, {"size": 3})
    assert (made, env.dial.size) == ([(2, {"size": 3})], 3)
    env.close()
    assert env.dial.is_closed


def test_the_steps_are_the_same_in_workers_to_which_the_kind_is_sent() -> None:
    here, there = (make_vec_env(Dial, n_envs=2, seed=1, n_workers=number) for number in (0, 1))
    assert np.array_equal(here.reset().observations[0], there.reset().observations[0])
    for number in range(7):
        steps = [vec.step([np.full((2, 1), number % 5)]) for vec in (here, there)]
        assert steps[0].rewards.tolist() == steps[1].rewards.tolist()
        assert steps[0].observations[0].tolist() == steps[1].observations[0].tolist()
    there.close()


def test_the_kind_that_was_added_last_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_env(EXAMPLES["gymnasium"], 0, {}), SingleAgentEnv)
    monkeypatch.setattr(DialKind, "recognises", lambda _, env: isinstance(env, gymnasium.Env))
    assert isinstance(make_env(EXAMPLES["gymnasium"], 0, {}), DialEnv)


@pytest.mark.parametrize("other", [gymnasium.Env, AECEnv])
def test_a_parallel_env_stays_one_whatever_else_it_is(other: type) -> None:
    env = type("OfTwoLibraries", (ParallelEnv, other), {})()
    assert make_env(lambda: env, 0, {}) is env


def test_agents_in_tuples_are_several_below_a_wrapper_that_counts_too() -> None:
    vec = make_vec_env(lambda: OrderEnforcing(RecordEpisodeStatistics(Pair())))
    assert vec.agents == ("agent_0", "agent_1")


def test_a_finder_needs_no_base_class() -> None:
    ENV_FINDERS.add("old", SimpleNamespace(find=lambda env_id: None))  # type: ignore[arg-type]
    register_env("zz", ScriptedEnv)
    ENV_FINDERS.remove("old")
    assert REGISTERED.pop("zz") is ScriptedEnv


def test_what_is_of_no_kind_is_refused_with_the_kinds_that_are_there() -> None:
    with pytest.raises(
        ConfigError,
        match=rf"makes an object of builtins.int; accepted: .*, {KINDS}$",
    ):
        make_env(lambda: 3, 0, {})
    with pytest.raises(
        ConfigError,
        match=rf"^env is 3; accepted: an id or .*, {KINDS}$",
    ):
        env_factory(3)  # type: ignore[arg-type]


def test_built_in_kinds_and_envs_are_imported_when_they_are_used() -> None:
    program = (
        "import sys, marl_sb3.core.envs.registry as registry\n"
        "print([name for name in ('rllib', 'external', 'arena') if f'marl_sb3.envs.{name}' in sys.modules])\n"
        "registry.make_env(registry.env_factory('arena'), 0, {})\n"
        "print('marl_sb3.envs.external' in sys.modules, 'ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nFalse False\n"
