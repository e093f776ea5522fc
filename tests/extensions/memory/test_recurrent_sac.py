"""RecurrentSAC: its stored states, its losses, what it can remember, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from cells import CELLS, SMALL
from gymnasium import spaces
from toy_envs import Forces

from marl_sb3 import MultiAgentAlgorithm, PolicySpec, RecurrentSAC, make_vec_env
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.memory.networks import MemoryNetwork

NETWORK = {"net_arch": [4], "lstm_hidden_size": 3}


class Wide(Forces):
    forces = spaces.Box(-2, 2, (1,))


def played(cell: str = "lstm", **settings: Any) -> Any:
    """A policy after 18 steps without updates: agent b waits now and then; one ends by a time limit, one does not."""
    plans = [[({"a": (7, "truncated"), "b": (7, "terminated")}, {}, {"b": [1, 3, 4, 6]})]] * 2
    env = make_vec_env(Wide, n_envs=2, seed=1, plans=plans)
    spec = PolicySpec(RecurrentSAC, **{**SMALL, "policy_kwargs": {**NETWORK, "cell": cell}, **settings})
    made = MultiAgentAlgorithm(env, {"p": spec}, n_steps=18, seed=3, device="cpu")
    made.train_iteration()
    return made.policies["p"]


def of_part(policy: Any, states: np.ndarray, critic: bool) -> tuple[th.Tensor, ...]:
    """(layers, 1, size) of the states of actor or critic in a transition; a GRU has one of two."""
    own = np.split(states, 2)[critic]
    kept = th.as_tensor(own)[:, :, None]
    return (kept[0], kept[1] if len(kept) > 1 else th.zeros_like(kept[0]))


NO_START = th.zeros(1, dtype=th.bool)


@pytest.mark.parametrize("cell", CELLS)
def test_the_states_of_actor_and_critic_are_stored(cell: str) -> None:
    policy = played(cell)
    buffer = policy.replay_buffer
    assert buffer.states.shape[2:] == (4 if cell == "lstm" else 2, 1, 3)
    for network, is_critic in ((policy.actor, False), (policy.critic, True)):
        for row, count in enumerate(buffer.counts):
            states = network.memory.initial(1)
            for line in range(count):
                for own, expected in zip(of_part(policy, buffer.states[line, row], is_critic), states, strict=True):
                    np.testing.assert_allclose(own, expected.detach(), atol=1e-6)
                _, states = network.step(th.as_tensor(buffer.observations[line, row])[None], states, NO_START)
                if buffer.dones[line, row]:
                    states = network.memory.initial(1)


# --- The losses ------------------------------------------------------------------------------------------------------


def most_likely(actor: Any, outputs: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """Instead of `sample`: the mode of the actions, and a number in the place of their log-probability."""
    mean, log_std = actor.gaussian(outputs)
    return th.tanh(mean), log_std[..., 0]


class ByHand:
    """What the networks give along a sequence, one call for each step, by loops over the buffer."""

    def __init__(self, policy: Any, line: int, row: int, place: int) -> None:
        self.policy, self.buffer, self.row = policy, policy.replay_buffer, row
        self.first = line
        while self.first > max(line - place, 0) and not self.is_last(self.first - 1):
            self.first -= 1
        start = self.first
        while start > max(self.first - self.buffer.burn_in, 0) and not self.is_last(start - 1):
            start -= 1
        self.end = line - place + self.buffer.sequence_length
        self.outputs = {name: self._along(name, start) for name in ("actor", "critic", "critic_target")}
        self.end = min(self.end, self.over + 1)

    def is_last(self, line: int) -> bool:
        return line == self.buffer.counts[self.row] - 1 or bool(self.buffer.dones[line, self.row])

    def _along(self, name: str, line: int) -> dict[int, th.Tensor]:
        """Line -> outputs of the memory for its observation; and for the one after the last."""
        network, found = getattr(self.policy, name), {}
        states = of_part(self.policy, self.buffer.states[line, self.row], name != "actor")
        while True:
            seen = th.as_tensor(self.buffer.observations[line, self.row])[None]
            found[line], states = network.step(seen, states, NO_START)
            if self.is_last(line):
                final = th.as_tensor(self.buffer.next_observations[line, self.row])[None]
                found[line + 1], _ = network.step(final, states, NO_START)
                self.over = line
                return found
            line += 1

    def target(self, line: int, ent_coef: float) -> float:
        returned, steps = 0.0, 0
        while True:
            returned += self.policy.gamma**steps * float(self.buffer.rewards[line + steps, self.row])
            steps += 1
            if steps == self.buffer.n_steps or self.is_last(line + steps - 1):
                break
        last = line + steps - 1, self.row
        if self.buffer.dones[last] and not self.buffer.timeouts[last]:
            return returned
        action, log_prob = most_likely(self.policy.actor, self.outputs["actor"][line + steps])
        values = self.policy.critic_target.values(self.outputs["critic_target"][line + steps], action)
        return returned + self.policy.gamma**steps * (values.min() - ent_coef * log_prob).item()

    def critic_loss(self, ent_coef: float) -> float:
        losses = []
        for line in range(self.first, self.end):
            taken = th.as_tensor(self.buffer.actions[line, self.row])[None]
            values = self.policy.critic.values(self.outputs["critic"][line], taken)
            losses.append(0.5 * ((values - self.target(line, ent_coef)) ** 2).sum().item())
        return float(np.mean(losses))

    def actor_loss(self, ent_coef: float) -> float:
        losses = []
        for line in range(self.first, self.end):
            action, log_prob = most_likely(self.policy.actor, self.outputs["actor"][line])
            losses.append(
                (ent_coef * log_prob - self.policy.critic.values(self.outputs["critic"][line], action).min()).item()
            )
        return float(np.mean(losses))


@pytest.mark.parametrize(("cell", "n_steps"), [("lstm", 1), ("gru", 3)])
def test_the_losses_are_those_of_single_steps_by_hand(cell: str, n_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = played(cell, n_steps=n_steps)
    monkeypatch.setattr(type(policy.actor), "sample", most_likely)
    with th.no_grad():  # other weights than those that have played, and another target network
        for factor, network in ((1.3, policy.actor), (2.0, policy.critic), (2.5, policy.critic_target)):
            for parameter in network.parameters():
                parameter.mul_(factor)
    buffer, ent_coef = policy.replay_buffer, 0.3
    chosen = [(line, row, place) for row in range(4) for line in range(buffer.counts[row]) for place in range(3)]
    batch = buffer.sequences_at(*(np.array(each) for each in zip(*chosen, strict=True)), None)
    coefficient = th.tensor(ent_coef)
    with th.no_grad():
        outputs = policy.actor.unroll(batch, batch.states[:2])
        targets = policy.targets(batch, outputs, coefficient)
        critic_loss = policy.critic_loss(batch, targets).item()
        actions, log_probs = policy.actor.sample(outputs[: len(batch.actions)])
        actor_loss = policy.actor_loss(batch, actions, log_probs, coefficient).item()
        by_hand = [ByHand(policy, *each) for each in chosen]
        assert critic_loss == pytest.approx(np.mean([each.critic_loss(ent_coef) for each in by_hand]), rel=1e-5)
        assert actor_loss == pytest.approx(np.mean([each.actor_loss(ent_coef) for each in by_hand]), rel=1e-5)


def test_each_loss_changes_its_own_network_and_targets_follow_the_critics() -> None:
    policy = played(tau=0.25, target_entropy=-3.0, ent_coef="auto_0.5")
    parts = ("actor", "critic", "critic_target")
    before = {name: {key: value.clone() for key, value in getattr(policy, name).state_dict().items()} for name in parts}
    policy.train(gradient_steps=1, batch_size=8)
    for name in ("actor", "critic"):
        after = getattr(policy, name).state_dict()
        assert all(not th.equal(value, after[key]) for key, value in before[name].items() if "memory" in key)
    for key, value in policy.critic_target.state_dict().items():
        moved = 0.75 * before["critic_target"][key] + 0.25 * policy.critic.state_dict()[key]
        assert th.allclose(value, moved, atol=1e-7)
    recorded = policy.logger.name_to_value
    assert recorded["train/ent_coef"] == pytest.approx(0.5)
    assert policy.log_ent_coef.item() < np.log(0.5)  # its actions are more random than wanted
    policy.actor.optimizer.zero_grad()
    policy.train(gradient_steps=1, batch_size=8)
    assert recorded["train/ent_coef"] < 0.5


# --- Predicting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
def test_it_predicts_with_its_state_from_its_file_too(cell: str, tmp_path: Path) -> None:
    policy = played(cell)
    policy.save(tmp_path / "file")
    loaded = RecurrentSAC.load(tmp_path / "file.zip", device="cpu")
    seen = np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)
    answers = []
    for each in (policy, loaded):
        state, taken = None, []
        for of_step in seen:
            actions, state = each.predict(of_step, state, deterministic=True)
            taken.append(actions)
        answers.append(np.stack(taken))
    np.testing.assert_array_equal(*answers)
    assert (np.abs(answers[0]) <= 2).all()
    afresh = np.stack([loaded.predict(of_step, deterministic=True)[0] for of_step in seen])
    np.testing.assert_allclose(answers[0][0], afresh[0], atol=1e-6)
    assert (np.abs(answers[0] - afresh)[1:] > 1e-6).any()
    drawn, sampled_state = loaded.predict(seen[0])
    assert np.abs(drawn - afresh[0]).min() > 1e-6
    for own, other in zip(sampled_state, loaded.predict(seen[0], deterministic=True)[1], strict=True):
        np.testing.assert_array_equal(own, other)


def test_q_values_within_an_episode_are_refused() -> None:
    env = make_vec_env(Wide, n_envs=1, plans=[[({"a": (7, "truncated"), "b": (7, "terminated")}, {})]])
    spec = PolicySpec(RecurrentSAC, **{**SMALL, "policy_kwargs": NETWORK})
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, device="cpu")
    seen = {"a": np.zeros(3, np.float32)}
    assert algorithm.q_values(seen)["a"].shape == (2,)
    _, state = algorithm.predict_with_state(seen)
    with pytest.raises(
        ConfigError, match=r"\(RecurrentSAC\) has critics with a memory of their own; accepted: no state"
    ):
        algorithm.q_values(seen, state=state)


# --- What it learns, and what is refused -----------------------------------------------------------------------------


def test_gsde_is_refused() -> None:
    with pytest.raises(ConfigError, match="use_sde is true, which RecurrentSAC does not have; accepted: false"):
        played(use_sde=True)


def test_a_memory_has_a_known_cell() -> None:
    with pytest.raises(ConfigError, match="cell is 'rnn'; accepted: lstm, gru"):
        MemoryNetwork(3, "rnn", 4, 1)
