"""RecurrentPPO: every row keeps its own memory, and sequences follow the transitions of an agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from toy_envs import NoisyEnv, SampledEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.acting.policy import PolicyInputs
from marl_sb3.extensions.fast.contrib import RecurrentRolloutPolicy
from marl_sb3.extensions.fast.coverage import actor_critic_coverage

NETWORK = {"net_arch": [], "lstm_hidden_size": 3, "n_lstm_layers": 2}
SMALL: dict[str, Any] = {"n_steps": 5, "batch_size": 7, "n_epochs": 1, "policy_kwargs": NETWORK}
AGENTS = {"a": (7, "truncated"), "b": (7, "terminated"), "c": (3, "truncated")}
WAITS = {"b": [1, 3, 4, 6], "c": [1]}


def spec(algorithm: Any = sb3_contrib.RecurrentPPO, **more: Any) -> PolicySpec:
    return PolicySpec(algorithm, **{**SMALL, **more})


class Buffers(marl_sb3.MultiAgentCallback):
    """Keeps what the buffers hold at the end of each rollout, and checks their minibatches."""

    def __init__(self) -> None:
        super().__init__()
        self.rollouts: list[dict[str, Any]] = []
        self.checked = 0

    def _on_rollout_end(self) -> None:
        for policy_id, policy in self.algorithm.policies.items():
            buffer: Any = policy.rollout_buffer
            names = ("acted", "observations", "episode_starts", "hidden_states_pi", "cell_states_pi", "log_probs")
            kept = {name: getattr(buffer, name).copy() for name in names}
            self.rollouts.append({"policy_id": policy_id, **kept})

    def _on_step(self) -> bool:
        return True


def in_turns(mapping: Any = None, algorithm: Any = marl_sb3.RecurrentPPO) -> MultiAgentAlgorithm:
    """Agents that wait, end at other times, and are in the middle of a transition when rollouts end."""
    env = make_vec_env(NoisyEnv, n_envs=2, seed=1, plans=[[(AGENTS, {}, WAITS)]] * 2)
    ids = sorted(set((mapping or {"a": "p"}).values()))
    specs = {policy_id: spec(algorithm, learning_rate=lambda _: 0.0) for policy_id in ids}
    return MultiAgentAlgorithm(env, specs, mapping, seed=3, device="cpu")


MAPPINGS = [dict.fromkeys("abc", "p"), {"a": "p", "b": "q", "c": "q"}]


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_states_are_those_of_a_loop_over_each_agents_own_transitions(mapping: Any) -> None:
    algorithm, buffers = in_turns(mapping), Buffers()
    algorithm.learn(4 * 5 * 2, callback=buffers)
    compared = 0
    for policy_id in algorithm.policies:
        policy: Any = algorithm.policies[policy_id].policy
        rollouts = [rollout for rollout in buffers.rollouts if rollout["policy_id"] == policy_id]
        for row in range(rollouts[0]["acted"].shape[1]):
            zeros = th.zeros(2, 1, 3)
            states = RNNStates((zeros, zeros), (zeros, zeros))
            for rollout in rollouts:
                for step in np.flatnonzero(rollout["acted"][:, row]):
                    np.testing.assert_allclose(rollout["hidden_states_pi"][step, row], states.pi[0][:, 0], atol=1e-5)
                    np.testing.assert_allclose(rollout["cell_states_pi"][step, row], states.pi[1][:, 0], atol=1e-5)
                    seen = th.as_tensor(rollout["observations"][step, row])[None]
                    start = th.as_tensor(rollout["episode_starts"][step, row : row + 1])
                    with th.no_grad():
                        states = policy(seen, states, start)[3]
                    compared += 1
    # Each episode of 7 steps has 7 of a, 3 of b and 2 of c; two envs take 20 steps each.
    assert compared == sum(int(rollout["acted"].sum()) for rollout in buffers.rollouts) > 2 * 2 * 12


@pytest.mark.parametrize("algorithm_class", [marl_sb3.RecurrentPPO, sb3_contrib.RecurrentPPO])
def test_minibatches_are_sequences_of_one_row_and_one_episode(algorithm_class: Any) -> None:
    """The weights have not changed since the rollout: every log-probability is the one that was stored."""
    algorithm = in_turns(MAPPINGS[0], algorithm_class)
    policy: Any = algorithm.policies["p"]
    checked: list[int] = []

    def check() -> None:
        policy.rollout_buffer.whole_sequences = algorithm_class is marl_sb3.RecurrentPPO
        for batch in policy.rollout_buffer.get(7):
            mask = batch.mask > 0
            with th.no_grad():
                found = policy.policy.evaluate_actions(
                    batch.observations, batch.actions.long().flatten(), batch.lstm_states, batch.episode_starts
                )[1]
            th.testing.assert_close(found[mask], batch.old_log_prob[mask], atol=1e-5, rtol=1e-4)
            checked.append(int(mask.sum()))

    policy.train = check
    acted = []
    for _ in range(4):
        algorithm.train_iteration()
        acted.append(policy.rollout_buffer.num_transitions)
    assert sum(checked) == sum(acted) > 2 * 2 * 12
    assert max(checked) == 7


def test_the_name_of_a_policy_may_be_that_of_one_without_memory() -> None:
    assert PolicySpec(sb3_contrib.RecurrentPPO).policy == "MlpLstmPolicy"
    assert PolicySpec(sb3_contrib.RecurrentPPO, "CnnLstmPolicy").policy == "CnnLstmPolicy"
    with pytest.raises(ConfigError, match="unknown policy 'MlppPolicy' of RecurrentPPO; accepted: MlpLstmPolicy"):
        PolicySpec(sb3_contrib.RecurrentPPO, "MlppPolicy")


def test_it_trains_on_multidiscrete_observations_beside_another_algorithm() -> None:
    """sb3-contrib counts their numbers by NumPy, which PyTorch's LSTM refuses."""
    env = make_vec_env("arena", n_envs=2, max_timesteps=7, height=4)
    specs = {"agent1": spec(), "agent2": PolicySpec(n_steps=5, batch_size=5)}
    algorithm = MultiAgentAlgorithm(env, specs, seed=0, device="cpu")
    assert algorithm.train_iteration()["learners"]["agent1"]["num_module_steps_trained"] == 2 * 5
    assert type(algorithm.policies["agent1"].policy.features_dim) is int


def test_a_rollout_buffer_is_made_once() -> None:
    """sb3-contrib's own has room for one step."""
    policy: Any = MultiAgentAlgorithm(make_vec_env(ScriptedEnv), {"p": spec(n_steps=6)}, device="cpu").policies["p"]
    assert (policy.n_steps, policy.rollout_buffer.buffer_size) == (6, 6)
    assert policy.rollout_buffer.hidden_states_pi.shape == (6, 2, 2, 3)


SEEN = {"numbers": spaces.Box(-1, 1, (3,)), "categories": spaces.MultiDiscrete([3, 4])}
CHOSEN = {"category": spaces.Discrete(3), "forces": spaces.Box(-1, 1, (2,))}
SHARED = {"shared_lstm": True, "enable_critic_lstm": False}


def policy_of(network: Any, seen: str = "numbers", chosen: str = "category", **more: Any) -> RecurrentRolloutPolicy:
    env = make_vec_env(SampledEnv, n_envs=3, observation_space=SEEN[seen], action_space=CHOSEN[chosen])
    policies = {"p": spec(marl_sb3.RecurrentPPO, policy_kwargs={**NETWORK, **network}, **more)}
    return RecurrentRolloutPolicy(MultiAgentAlgorithm(env, policies, seed=3, device="cpu").policies["p"])  # type: ignore[arg-type]


@pytest.mark.parametrize("chosen", CHOSEN)
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("network", [{"net_arch": [4]}, SHARED, {"enable_critic_lstm": False}])
def test_kernels_act_as_pytorch_does(network: Any, seen: str, chosen: str) -> None:
    by_kernels = policy_of(network, seen, chosen)
    by_torch = RecurrentRolloutPolicy(by_kernels.algorithm)
    by_torch.kernels = None
    rng, states = np.random.default_rng(0), by_kernels.initial_states(6)
    for step in range(4):
        observations = np.stack([SEEN[seen].sample() for _ in range(6)])
        inputs = PolicyInputs(observations, rng.random(6) < 0.3, None, states)
        decisions = []
        for each in (by_kernels, by_torch):
            th.manual_seed(step)
            actions, after, *more = each.act(inputs)
            decisions.append((actions, *after, *more, each.values(inputs), each.final_values(inputs)))
        for found, expected in zip(*decisions, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        states = after


def test_kernels_follow_weights_that_a_callback_sets() -> None:
    by_kernels = policy_of({})
    inputs = PolicyInputs(np.ones((6, 3), np.float32), np.ones(6, bool), None, by_kernels.initial_states(6))
    before = by_kernels.values(inputs)
    with th.no_grad():
        by_kernels.algorithm.policy.lstm_critic.weight_ih_l0.mul_(3)
    by_kernels.refresh()
    assert not np.allclose(by_kernels.values(inputs), before)


@pytest.mark.parametrize(
    ("network", "more", "reason"),
    [
        ({"lstm_kwargs": {"bias": False}}, {}, "lstm_kwargs"),
        ({"activation_fn": th.nn.ELU}, {}, "activation ELU"),
        ({}, {"use_sde": True}, "gSDE"),
    ],
)
def test_what_the_kernels_do_not_cover_is_left_to_pytorch(network: Any, more: Any, reason: str) -> None:
    made = policy_of(network, chosen="forces", **more)
    assert made.kernels is None
    assert actor_critic_coverage(made.algorithm, trains=False) == reason
    assert made.algorithm.takes_fused_path()  # type: ignore[attr-defined]  # in updates


@pytest.mark.parametrize("algorithm", [sb3_contrib.RecurrentPPO, marl_sb3.RecurrentPPO])
def test_it_learns_from_actions_of_a_multi_binary_space(algorithm: Any) -> None:
    """sb3-contrib's own buffers fail: they keep int8, of which PyTorch computes no log-probabilities."""
    env = make_vec_env(SampledEnv, observation_space=spaces.Discrete(2), action_space=spaces.MultiBinary(3))
    trained = MultiAgentAlgorithm(env, {"p": spec(algorithm)}, seed=3, device="cpu")
    assert trained.train_iteration()["learners"]["p"]["num_module_steps_trained"] == 10
