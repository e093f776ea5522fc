"""Q-learning with action masks: they hold where actions are chosen, and where the best next action is looked up."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from toy_envs import NoisyEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.off_policy.replay import Transitions
from marl_sb3.core.state.state import TensorFile
from marl_sb3.errors import CheckpointError, ConfigError, EnvError
from marl_sb3.extensions.fast.masked_q import MaskedQLearning

SMALL = {"buffer_size": 60, "learning_starts": 4, "batch_size": 8, "train_freq": 2, "policy_kwargs": {"net_arch": [4]}}
PAIRS = {
    "DQN": (marl_sb3.DQN, marl_sb3.MaskableDQN, SMALL),
    "QRDQN": (
        marl_sb3.QRDQN,
        marl_sb3.MaskableQRDQN,
        {**SMALL, "policy_kwargs": {"net_arch": [4], "n_quantiles": 3}},
    ),
}
MASKED = {name: (masked, settings) for name, (_, masked, settings) in PAIRS.items()}
BUFFERS: dict[str, dict[str, Any]] = {
    "single steps": {},
    "several steps": {"n_steps": 3},
    "less memory": {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}},
}
IN_TURNS = ({"a": (7, "truncated"), "b": (7, "terminated")}, {}, {"b": [1, 3, 4, 6]})  # b waits now and then


class AllAllowed(NoisyEnv):
    """Its masks are of ones."""

    def _with_masks(self, infos: dict[str, Any]) -> dict[str, Any]:
        ones = np.ones(3, dtype=np.int8)
        return infos | {agent: {**infos.get(agent, {}), "action_mask": ones} for agent in self.agents}


class MasksOfEnds(ScriptedEnv):
    """Agents get a mask when they end, too: `last`."""

    last: Any = np.array([False, True, True])

    def _with_masks(self, infos: dict[str, Any]) -> dict[str, Any]:
        ended = {agent: {"action_mask": self.last} for agent in self.possible_agents if agent not in self.agents}
        return super()._with_masks(infos) | {agent: {**infos.get(agent, {}), **info} for agent, info in ended.items()}


def train(algorithm: Any, env: Any, settings: Mapping[str, Any], **more: Any) -> MultiAgentAlgorithm:
    spec = PolicySpec(algorithm, **settings)
    made = MultiAgentAlgorithm(env, {"p": spec}, n_steps=10, seed=3, device="cpu", **more)
    for _ in range(3):
        made.train_iteration()
    return made


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("name", PAIRS)
def test_with_masks_of_ones_it_equals_its_base_bit_for_bit(name: str, buffer: str) -> None:
    plain, masked, settings = PAIRS[name]
    one, other = (
        train(each, make_vec_env(AllAllowed, n_envs=2, seed=1, plans=[[IN_TURNS]] * 2, masked=True),
              {**settings, **BUFFERS[buffer]}, update_path="torch")
        for each in (plain, masked)
    )  # fmt: skip
    expected, found = (each.policies["p"].get_parameters()["policy"] for each in (one, other))
    assert all(th.equal(value, found[key]) for key, value in expected.items())
    assert other.policies["p"].num_timesteps == one.policies["p"].num_timesteps > 50


@pytest.mark.parametrize("path", ["torch", "fused"])
@pytest.mark.parametrize("name", MASKED)
def test_a_forbidden_action_is_never_taken(name: str, path: str) -> None:
    """Neither at the start nor by chance nor as the best one; 0 is forbidden in even steps, 1 in odd ones."""
    algorithm, settings = MASKED[name]
    env = make_vec_env(ScriptedEnv, n_envs=2, masked=True, script={"a": (6, "truncated"), "b": (6, "terminated")},
                       skips={"b": [1, 3]})  # fmt: skip
    train(algorithm, env, {**settings, "learning_starts": 20, "exploration_fraction": 1.0}, update_path=path)
    for received in env.call("received", range(2)):
        assert len(received) == 30
        for step, actions in enumerate(received):
            assert all(action != (step % 6) % 2 for action in actions.values())
        assert {int(action) for actions in received for action in actions.values()} == {0, 1, 2}


def stored(script: tuple[int, str], env: Any = ScriptedEnv, skips: Any = None, **settings: Any) -> list[Any]:
    """(step seen, next mask) of the transitions of agent b, in the order in which they ended."""
    made = make_vec_env(env, masked=True, script={"a": (6, "truncated"), "b": script}, skips=skips or {})
    specs = {name: PolicySpec(marl_sb3.MaskableDQN, **{**SMALL, "learning_starts": 99, **settings}) for name in "ab"}
    algorithm = MultiAgentAlgorithm(made, specs, n_steps=6, seed=0, device="cpu")
    algorithm.train_iteration()
    buffer: Any = algorithm.policies["b"].replay_buffer
    number = buffer.num_transitions
    seen, masks = (array[:number, 0].astype(int).tolist() for array in (buffer.observations[..., 2], buffer.next_masks))
    return list(zip(seen, masks, strict=True))


def test_the_mask_is_that_of_the_next_turn_and_after_an_end_all_is_allowed() -> None:
    """Agent b acts in steps 0, 3 and 4, and ends after step 5, in which it waits."""
    for end in ("terminated", "truncated"):
        found = stored((6, end), skips={"b": [1, 2, 5]})
        assert found == [(0, [1, 0, 1]), (3, [0, 1, 1]), (4, [1, 1, 1])]


@pytest.mark.parametrize(
    ("last", "kept"), [([0, 1, 1], [0, 1, 1]), ([True, False, False], [1, 0, 0]), ([0, 0, 0], [1, 1, 1])]
)
def test_a_truncated_agent_has_the_mask_that_its_env_gives_it_at_the_end(
    last: list[int], kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Board games give zeros when they are over: these say nothing."""
    monkeypatch.setattr(MasksOfEnds, "last", np.array(last))
    assert stored((3, "truncated"), MasksOfEnds)[2] == (2, kept)
    assert stored((3, "terminated"), MasksOfEnds)[2] == (2, [1, 1, 1])


def test_a_wrong_mask_at_the_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MasksOfEnds, "last", np.ones(4))
    words = r"env 0, agent 'b', which was truncated: action_mask has shape \(4,\); accepted: \(3,\)"
    with pytest.raises(EnvError, match=words):
        stored((3, "truncated"), MasksOfEnds)


# --- Buffers ---------------------------------------------------------------------------------------------------------

NUMBERS = spaces.Box(0, 255, (1,))
GOALS = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), NUMBERS))
OF_BUFFERS: dict[str, tuple[spaces.Space[Any], dict[str, Any]]] = {
    "TransitionReplayBuffer": (NUMBERS, {}),
    "TransitionDictReplayBuffer": (GOALS, {}),
    "NStepBuffer": (NUMBERS, {"n_steps": 3, "gamma": 0.9}),
    "NStepDictBuffer": (GOALS, {"n_steps": 3, "gamma": 0.9}),
    "CompactBuffer": (NUMBERS, {"optimize_memory_usage": True, "handle_timeout_termination": False}),
    "HindsightBuffer": (GOALS, {}),
}


class NoRewards:
    """An env that pays nothing for goals."""

    rows: Any

    def env_method(self, _name: str, achieved: np.ndarray, *_: Any, **__: Any) -> list[np.ndarray]:
        return [np.zeros(len(achieved))]


def bits(numbers: np.ndarray) -> np.ndarray:
    return np.unpackbits(numbers.astype(np.uint8).reshape(-1, 1), axis=1).astype(bool)


def filled(name: str, replay: str = "uniform") -> Any:
    """A buffer of two rows that has gone round once; the mask of an observation has the bits of its number."""
    space, settings = OF_BUFFERS[name]
    goals = {"goals": NoRewards()} if name == "HindsightBuffer" else {}
    kinds = marl_sb3.MaskableDQN.buffers_by_replay[replay]
    (kind,) = (own for stock, own in kinds.items() if getattr(stock, "__name__", "") == name)
    buffer: Any = kind(60, space, spaces.Discrete(8), device="cpu", n_envs=2, **settings, **goals)
    for step in range(45):
        seen, following = (np.array([[1.0 + at], [101.0 + at]], np.float32) for at in (step, step + 1))
        observed, observed_next = (dict.fromkeys(GOALS, each) if space is GOALS else each for each in (seen, following))
        ended = np.full(2, step % 7 == 6)
        zeros = np.zeros(2)
        buffer.add_transitions(
            Transitions(observed, observed_next, zeros, zeros, ended, zeros, np.arange(2), bits(following))
        )
    return buffer


@pytest.mark.parametrize(
    ("name", "replay"),
    [
        *((name, "uniform") for name in OF_BUFFERS),
        ("TransitionReplayBuffer", "prioritized"),
        ("NStepBuffer", "prioritized"),
    ],
)
def test_every_buffer_draws_the_masks_of_the_next_observations_that_it_draws(name: str, replay: str) -> None:
    buffer = filled(name, replay)
    following = buffer.sample(200).next_observations
    following = following["observation"] if isinstance(following, dict) else following
    assert len(set(following[:, 0].tolist())) > 20
    np.testing.assert_array_equal(buffer.drawn_masks, bits(following.numpy()))


@pytest.mark.parametrize(
    "buffer",
    [
        own
        for each in (marl_sb3.DQN, MaskedQLearning, marl_sb3.VDN)
        for of in each.buffers_by_replay.values()
        for own in of.values()
    ],
)
def test_a_replay_buffer_is_pickled_by_its_name(buffer: type) -> None:
    assert pickle.loads(pickle.dumps(buffer)) is buffer  # also the function that refuses one


def test_a_checkpoint_whose_masks_forbid_everything_is_refused() -> None:
    buffer = filled("TransitionReplayBuffer")
    buffer.next_masks[3, 1] = False
    file = TensorFile("replay-000", buffer.tensors())
    with pytest.raises(CheckpointError, match="replay-000: next_masks forbid every action"):
        filled("TransitionReplayBuffer").require_columns(file, 30, 2)


# --- The target ------------------------------------------------------------------------------------------------------


def with_transitions(name: str, **settings: Any) -> Any:
    """An algorithm whose buffer has the transitions of a few steps, of which each next mask forbids the best action."""
    algorithm, small = MASKED[name]
    env = make_vec_env(ScriptedEnv, masked=True, script={"a": (9, "truncated"), "b": (9, "truncated")})
    spec = PolicySpec(algorithm, **{**small, "learning_starts": 99, "gamma": 0.5, **settings})
    made = MultiAgentAlgorithm(env, {"p": spec}, n_steps=8, seed=0, device="cpu")
    made.train_iteration()
    policy: Any = made.policies["p"]
    target = policy.networks()[1]
    with th.no_grad():
        values = _mean(target(th.as_tensor(policy.replay_buffer.next_observations[:8].reshape(16, 3))))
    policy.replay_buffer.next_masks[:8] = (np.arange(3) != values.argmax(1).numpy()[:, None]).reshape(8, 2, 3)
    return policy


def _mean(values: th.Tensor) -> th.Tensor:
    return values if values.dim() == 2 else values.mean(dim=1)


@pytest.mark.parametrize("path", ["torch", "fused"])
@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("name", MASKED)
def test_the_target_goes_on_with_the_best_allowed_action(
    name: str, n_steps: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = with_transitions(name, n_steps=n_steps)
    policy.update_path = path
    buffer, drawn = policy.replay_buffer, []
    monkeypatch.setattr(
        buffer, "sample", lambda *args, **more: drawn.append(type(buffer).sample(buffer, *args, **more)) or drawn[-1]
    )
    with th.no_grad():
        online, target = policy.networks()
        before = {key: value.clone() for key, value in online.state_dict().items()}
    policy.train(gradient_steps=1, batch_size=64)
    (batch,) = drawn
    recorded = policy.logger.name_to_value["train/loss"]
    online.load_state_dict(before)
    with th.no_grad():
        following = target(batch.next_observations)
        best = _mean(following).argmax(1)
        # The second best, as the best is forbidden everywhere, worked by hand.
        second = _mean(following).scatter(1, best[:, None], -99.0).argmax(1)
        assert (best != second).all()
        kept = following[np.arange(64), ..., second].reshape(64, -1)
        discounts = 0.5 if batch.discounts is None else batch.discounts
        wanted = batch.rewards + (1 - batch.dones) * discounts * kept
        current = online(batch.observations)[np.arange(64), ..., batch.actions[:, 0]].reshape(64, -1)
    if current.shape[1] == 1:
        expected = th.nn.functional.smooth_l1_loss(current, wanted).item()
    else:
        errors = wanted[:, None] - current[..., None]
        huber = th.where(errors.abs() > 1, errors.abs() - 0.5, errors**2 / 2)
        levels = (th.arange(3) + 0.5)[None, :, None] / 3
        expected = ((levels - (errors < 0).float()).abs() * huber).mean(2).sum(1).mean().item()
    assert recorded == pytest.approx(expected, rel=1e-5)
    if n_steps == 3:
        assert len(set(np.round(batch.discounts[:, 0].tolist(), 4))) > 1


# --- Predicting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MASKED)
def test_it_predicts_among_what_is_allowed_from_its_file_too(name: str, tmp_path: Path) -> None:
    policy = with_transitions(name)
    seen = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    best = policy.predict(seen, deterministic=True)[0]
    np.testing.assert_array_equal(policy.predict(seen, deterministic=True, action_masks=np.ones((200, 3)))[0], best)
    masks = np.arange(3) != best[:, None]
    policy.save(tmp_path / "file")
    loaded = type(policy).load(tmp_path / "file.zip", device="cpu")
    for each in (policy, loaded):
        second = each.predict(seen, deterministic=True, action_masks=masks)[0]
        assert masks[np.arange(200), second].all()
        one, _ = each.predict(seen[0], deterministic=True, action_masks=masks[0])
        assert one.shape == ()
        assert one == second[0]
        each.exploration_rate = 1.0
        taken = each.predict(seen, action_masks=masks)[0]
        assert masks[np.arange(200), taken].all()
        # Uniformly: each of two actions about 100 times.
        assert 70 < (taken == masks.argmax(axis=1)).sum() < 130
    np.testing.assert_array_equal(second, policy.predict(seen, deterministic=True, action_masks=masks)[0])


@pytest.mark.parametrize("masks", [np.ones((2, 3)), np.zeros((4, 3))])
def test_masks_that_do_not_fit_are_refused(masks: np.ndarray) -> None:
    words = "accepted: 4 of 3, with an allowed action each"
    with pytest.raises(ConfigError, match=words):
        with_transitions("DQN").predict(np.zeros((4, 3), np.float32), action_masks=masks)


# --- What is refused -------------------------------------------------------------------------------------------------


def test_sb3s_own_loop_is_refused_in_words() -> None:
    words = r"MaskableDQN.learn\(\) is SB3's loop, which stores no action masks; accepted: marl_sb3.train"
    with pytest.raises(ConfigError, match=words):
        with_transitions("DQN").learn(10)


class SeveralChoices(ScriptedEnv):
    def action_space(self, agent: str) -> spaces.MultiDiscrete:
        return spaces.MultiDiscrete([2, 3])


@pytest.mark.parametrize("name", MASKED)
def test_only_discrete_actions_are_accepted(name: str) -> None:
    algorithm, settings = MASKED[name]
    with pytest.raises(ConfigError, match=f"accepted by Maskable{name}: Discrete"):
        MultiAgentAlgorithm(make_vec_env(SeveralChoices), {"p": PolicySpec(algorithm, **settings)}, device="cpu")


def test_an_env_without_masks_is_refused() -> None:
    with pytest.raises(ConfigError, match="action masks missing for MaskableDQN: the env gives none for a, b"):
        train(marl_sb3.MaskableDQN, make_vec_env(ScriptedEnv), SMALL)
