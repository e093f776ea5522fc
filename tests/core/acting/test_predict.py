"""`predict` by agent, with masks and with the memory of recurrent policies, which goes in and out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import contrib
import numpy as np
import pytest

from marl_sb3 import ConfigError, MultiAgentAlgorithm
from marl_sb3.core.acting.by_agent import PolicyBundle

ONE = np.array([0.5, -0.5, 1.0], np.float32)
BATCH = np.stack([ONE, -ONE])
ALLOWED = np.array([0, 1, 0, 1, 0])  # of MultiDiscrete([3, 2]): 1, then 0


@pytest.fixture(scope="module")
def bundle() -> PolicyBundle:
    return contrib.bundle()


@pytest.mark.parametrize("batched", [False, True])
def test_memory_goes_in_and_out_as_in_sb3s_own_predict(batched: bool, bundle: PolicyBundle) -> None:
    seen, policy = (BATCH if batched else ONE), bundle.policies["recurrent"]
    state: Any = None
    expected_state = None
    for step in range(4):
        starts = np.array([step == 2, False]) if batched else step == 2
        expected, expected_state = policy.predict(seen, expected_state, np.atleast_1d(starts), deterministic=True)
        given = {"r": seen, "p": seen} if step != 1 else {"r": seen}
        actions, state = bundle.predict_with_state(given, state, {"r": starts}, deterministic=True)
        np.testing.assert_array_equal(actions["r"], expected)
        assert list(state) == ["r"]
        assert all(np.array_equal(*pair) for pair in zip(state["r"], expected_state, strict=True))
    _, after = bundle.predict_with_state({"p": seen}, state)
    assert after == state  # an agent that does not act keeps what it had


@pytest.mark.parametrize("batched", [False, True])
def test_masks_choose_among_what_is_allowed(batched: bool, bundle: PolicyBundle) -> None:
    masks = np.stack([ALLOWED, ALLOWED[[1, 0, 2, 4, 3]]]) if batched else ALLOWED
    actions = bundle.predict({"m": BATCH if batched else ONE}, action_masks={"m": masks})
    np.testing.assert_array_equal(actions["m"], [[1, 0], [0, 1]] if batched else [1, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"observations": {"x": ONE}}, "observations: unknown agent 'x'; the env has m, r, p"),
        ({"state": {"x": ()}}, "state: unknown agent 'x'"),
        ({"state": "latest"}, "state is 'latest'; accepted: a mapping by agent"),
        ({"episode_starts": {"x": True}}, "episode_starts: unknown agent 'x'"),
        ({"action_masks": {"x": ALLOWED}}, "action_masks: unknown agent 'x'"),
        ({"action_masks": {"m": ALLOWED[:3]}}, r"'m': the action mask has shape \(3,\); accepted: \(5,\), for Multi"),
        ({"action_masks": {"m": [ALLOWED] * 2}}, r"has shape \(2, 5\); accepted: \(5,\)"),
        ({"action_masks": {"m": [1, 2, 0, 0, 1]}}, "accepted: booleans, or 0 and 1"),
        ({"action_masks": {"m": [1, 1, 1, 0, 0]}}, "forbids every action of choice 1"),
        ({"action_masks": {"p": [True]}}, r"its policy 'plain' \(PPO\) takes none; leave the agent out"),
        ({"state": {"p": (ONE,)}}, r"'p': a state was given, but its policy 'plain' \(PPO\) has none"),
        ({"state": {"r": (ONE, ONE)}}, r"does not fit .*\(RecurrentPPO\); .*2 arrays of shape \(2, 1, 4\)"),
        ({"state": {"r": 3}}, r"'r': the state does not fit"),
        ({"episode_starts": {"r": 3}}, "episode_starts is 3; accepted: a boolean"),
        ({"observations": {"r": ONE[:2]}}, "'r': the observation does not fit Box"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(arguments: Any, message: str, bundle: PolicyBundle) -> None:
    observations = {"m": {"observation": ONE, "action_mask": ALLOWED}, "r": ONE, "p": ONE}
    with pytest.raises(ConfigError, match=message):
        bundle.predict_with_state(**{"observations": observations, **arguments})


@pytest.mark.parametrize("batched", [False, True])
def test_the_mask_in_an_observation_is_used(batched: bool, bundle: PolicyBundle) -> None:
    masks = np.stack([ALLOWED, ALLOWED[[1, 0, 2, 4, 3]]]) if batched else ALLOWED
    own = {"observation": BATCH if batched else ONE, "action_mask": masks}
    for policies in (bundle, pairs(bundle)):  # by one call for one agent, and for two
        found = policies.predict(dict.fromkeys(["m", *(["m2"] if "m2" in policies.policy_of else [])], own))
        for actions in found.values():
            np.testing.assert_array_equal(actions, [[1, 0], [0, 1]] if batched else [1, 0])
    assert bundle.distribution({"m": own})["m"].mode().tolist() == ([[1, 0], [0, 1]] if batched else [[1, 0]])
    other = bundle.predict({"m": own}, action_masks={"m": 1 - masks})["m"]
    assert not np.array_equal(other, [[1, 0], [0, 1]] if batched else [1, 0])  # the argument wins


def test_a_policy_that_needs_a_mask_does_not_act_without_one(bundle: PolicyBundle) -> None:
    accepted = r"accepted: action_masks=\{agent: mask\}, or an observation \{observation, action_mask\}"
    words = rf"agent 'm': action mask missing for its policy 'masked' \(MaskablePPO\); {accepted}"
    with pytest.raises(ConfigError, match=words):
        bundle.predict({"m": ONE, "p": ONE})


def test_an_algorithm_predicts_as_its_bundle_does() -> None:
    algorithm = MultiAgentAlgorithm("arena", n_steps=4, batch_size=4, device="cpu")
    seen = {"agent1": [0, 99], "agent2": [99, 0]}
    actions, state = algorithm.predict_with_state(seen, deterministic=True)
    assert actions == algorithm.predict(seen, deterministic=True)
    assert state == {}
    with pytest.raises(ConfigError, match="takes none"):
        algorithm.predict(seen, action_masks={"agent1": [True] * 5})


def pairs(bundle: PolicyBundle) -> PolicyBundle:
    """Two agents for each policy."""
    policy_of = {agent + number: policy_id for agent, policy_id in bundle.policy_of.items() for number in ("", "2")}
    return replace(bundle, policy_of=policy_of)


def test_agents_of_a_policy_are_predicted_by_one_call(bundle: PolicyBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    together, calls = pairs(bundle), []
    seen, masks = {"m": ONE, "m2": BATCH, "r": -ONE, "r2": BATCH}, {"m": ALLOWED, "m2": np.stack([ALLOWED] * 2)}
    _, before = together.predict_with_state(seen, action_masks=masks, deterministic=True)
    alone = {
        agent: together.predict_with_state(
            {agent: own},
            {name: memory for name, memory in before.items() if name == agent},
            action_masks={name: mask for name, mask in masks.items() if name == agent},
            deterministic=True,
        )
        for agent, own in seen.items()
    }
    for algorithm in bundle.policies.values():
        inner = algorithm.predict
        monkeypatch.setattr(algorithm, "predict", lambda *a, inner=inner, **k: calls.append(a) or inner(*a, **k))
    actions, after = together.predict_with_state(seen, before, action_masks=masks, deterministic=True)
    assert len(calls) == 2
    assert list(actions) == list(seen)
    for agent, (expected, memory) in alone.items():
        assert actions[agent].shape == expected[agent].shape
        np.testing.assert_allclose(actions[agent], expected[agent], rtol=1e-5)
        for part, own in zip(after.get(agent, ()), memory.get(agent, ()), strict=True):
            np.testing.assert_allclose(part, own, rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(ONE * np.nan, "agent 'p2': the observation does not fit .* Expected parameter"), (ONE[:2], "agent 'p2': the")],
)
def test_an_observation_that_does_not_fit_names_its_agent(wrong: Any, message: str, bundle: PolicyBundle) -> None:
    with pytest.raises(ConfigError, match=message):
        pairs(bundle).predict({"p": ONE, "p2": wrong})
