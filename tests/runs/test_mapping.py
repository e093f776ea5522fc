"""The setting `mapping`: who plays whom, from settings alone, or by code that the user names and no file does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3.evaluate import main as evaluate_main
from marl_sb3.runs.settings import load_config
from marl_sb3.runs.start import prepare
from marl_sb3.train import main

CODE = """
from marl_sb3 import SampledAssignment

drawn = SampledAssignment({"agent1": ["agent1", "agent2"], "agent2": "agent2"})


def sides(agent, episode, **others):
    return ["agent1", "agent2"][(agent == "agent2") ^ (episode.number % 2)]
"""
TWO: Mapping[str, Any] = {"main": {}, "rival": {}}


@pytest.fixture
def code(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own_mapping_module.py").write_text(CODE)
    monkeypatch.syspath_prepend(in_tmp)


def candidates(mapping: Any, policies: Any = "per_agent", env: Any = "arena") -> Any:
    settings = {"mapping": mapping, "n_steps": 32, "batch_size": 64}
    config = load_config("arena" if env == "arena" else "any", policies=policies, n_envs=2, settings=settings)
    run = prepare(config, factory=None if env == "arena" else env, makes_folder=False)
    run.close()
    return run.algorithm.candidates or run.algorithm.policy_of


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("mapping", "policies", "expected"),
    [
        ("swap", "per_agent", {"agent1": ("agent1", "agent2"), "agent2": ("agent2", "agent1")}),
        (
            "swap",
            {"main": {"agents": ["agent2"]}, "rival": {"agents": ["agent1"]}},
            {"agent1": ("rival", "main"), "agent2": ("main", "rival")},
        ),
        ({"agent1": ["main", "rival"], "agent2": "main"}, TWO, {"agent1": ("main", "rival"), "agent2": ("main",)}),
        (
            {"agent1": ["main", "rival"]},
            {"main": {}, "rival": {"agents": ["agent2"]}},
            {"agent1": ("main", "rival"), "agent2": ("rival",)},
        ),
        ({"agent2": ["agent2", "agent1"]}, "per_agent", {"agent1": ("agent1",), "agent2": ("agent2", "agent1")}),
        ({"agent1": 1, "agent2": [2]}, {"1": {}, "2": {}}, {"agent1": "1", "agent2": "2"}),
        (
            "own_mapping_module:sides",
            "per_agent",
            {"agent1": ("agent1", "agent2"), "agent2": ("agent2", "agent1")},
        ),
        ("own_mapping_module:drawn", "per_agent", {"agent1": ("agent1", "agent2"), "agent2": ("agent2",)}),
    ],
)
def test_settings_say_who_may_play_whom(mapping: Any, policies: Any, expected: Any) -> None:
    assert candidates(mapping, policies) == expected


class Different(ScriptedEnv):
    """`b` has another space than `a`."""

    def __init__(self) -> None:
        super().__init__({"a": (2, "terminated"), "b": (2, "terminated")})

    def action_space(self, agent: str) -> Any:
        return super().action_space("a") if agent == "a" else type(super().action_space("a"))(7)


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize(
    ("mapping", "policies", "words"),
    [
        ("swop", "per_agent", "mapping 'swop': accepted: swap, or MODULE:NAME of a function or an Assignment"),
        ("own_mapping_module:no", "per_agent", "own_mapping_module has no function and no Assignment 'no'"),
        (["agent1"], "per_agent", "mapping is ['agent1']; accepted: swap, a mapping of agent ids to a policy id or"),
        ({"agent1": 0.5}, "per_agent", "mapping.agent1 is 0.5; accepted: a policy id, or a list of these"),
        ({"agent1": ["m"]}, "per_agent", "sends agent 'agent1' to unknown policy 'm'; accepted: agent1, agent2"),
        ({"agent3": "agent1"}, "per_agent", "names agent 'agent3'; the env has agent1, agent2"),
        ({"agent1": "main"}, TWO, "leaves out agent 'agent2'"),
        (
            {"agent1": ["main"]},
            {"main": {"agents": ["agent1", "agent2"]}},
            "agent 'agent1' is in mapping, and in the agents of policy 'main'; accepted: one of them",
        ),
        (
            "own_mapping_module:sides",
            {"agent1": {"agents": ["agent1"]}, "agent2": {"agents": ["agent2"]}},
            "mapping is 'own_mapping_module:sides', and policy 'agent1' has agents; accepted: one of them",
        ),
        ("own_mapping_module:sides", "shared", "returned 'agent1' for agent 'agent1' in episode 0 of env 0; accepted"),
        (
            "swap",
            "shared",
            "no agents with the same spaces have different policies: agent1, agent2: policy 'shared', M",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_with_its_source(mapping: Any, policies: Any, words: str) -> None:
    with pytest.raises(marl_sb3.ConfigError, match=r"^--set mapping: ") as caught:
        candidates(mapping, policies)
    assert words in str(caught.value)


def test_agents_with_different_spaces_do_not_swap() -> None:
    with pytest.raises(marl_sb3.ConfigError, match=r"a: policy 'a', .*Discrete\(3\); b: policy 'b', .*Discrete\(7\)"):
        candidates("swap", env=Different)


@pytest.mark.usefixtures("code")
def test_code_is_named_by_the_user_and_never_by_run_folders(capsys: pytest.CaptureFixture[str]) -> None:
    named = ["--set", "mapping=own_mapping_module:sides"]
    arguments = ["--policies", "per_agent", "--set", "n_envs=4", "--set", "n_steps=30", "--set", "learning_rate=1e-3"]
    arguments += ["--seed", "1", "--quiet", "--set", "env.max_timesteps=20"]
    for folder, steps in (("whole", "240"), ("broken", "120")):
        assert main(["arena", *arguments, *named, "--timesteps", steps, "--run-dir", folder]) == 0
    assert main(["--resume", "broken", "--timesteps", "120", "--quiet"]) == 2
    assert "accepted with --resume: --set mapping=own_mapping_module:sides" in capsys.readouterr().err
    assert main(["--hparams", "broken/config.yaml"]) == 2
    assert "arena.mapping: wants to import 'own_mapping_module:sides'" in capsys.readouterr().err
    assert main(["--resume", "broken", "--timesteps", "120", "--quiet", "--set", "mapping=swap"]) == 2
    assert "mapping cannot change in a run that goes on" in capsys.readouterr().err
    assert main(["--resume", "broken", "--timesteps", "120", "--quiet", *named]) == 0
    whole, broken = (sorted(Path(folder, "checkpoints/ckpt-000002").glob("policy*")) for folder in ("whole", "broken"))
    assert [path.read_bytes() for path in whole] == [path.read_bytes() for path in broken]
    Path("own_mapping_module.py").write_text("raise AssertionError")  # nothing else needs it
    assert evaluate_main(["broken", "--episodes", "1"]) == 0
    run = marl_sb3.load_run("broken")
    assert run.config.mapping == "own_mapping_module:sides"
    assert run.algorithm.candidates == {"agent1": ("agent1", "agent2"), "agent2": ("agent2", "agent1")}
    run.close()
