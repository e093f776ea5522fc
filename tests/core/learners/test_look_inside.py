"""`predict` by agent for every algorithm; values, distributions and Q values are those that SB3's policies compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch as th
from gymnasium import spaces
from learner_kinds import LEARNERS, Kind, make
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from toy_envs import SampledEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, load_policies, make_vec_env
from marl_sb3.core.acting.asked_agent import AgentInputs, RequestedOutputs
from marl_sb3.core.acting.by_agent import PolicyByAgent

BATCH = np.array([[1, 1, 0], [1, 2, 3], [1, 1, 5]], np.float32)
ONE_ALLOWED = np.eye(3, dtype=bool)
STARTS = np.array([True, False, False])
HAVING_DISTRIBUTIONS = ("action_net", "actor.mu", "actor.networks.0.2")


@pytest.fixture(scope="module", params=LEARNERS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A kind of algorithm, one of it after an iteration, and its policies loaded from a checkpoint."""
    kind: Kind = LEARNERS[request.param]
    algorithm = make(kind)
    algorithm.train_iteration()
    path = algorithm.save(tmp_path_factory.mktemp("saved") / "algorithm")
    specs = {policy_id: kind.spec() for policy_id in algorithm.policies}
    return kind, algorithm, load_policies(path, policies=specs, device="cpu")


def close(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def inputs(kind: Kind, policies: PolicyByAgent) -> dict[str, Any]:
    """A batch for agent a and one observation for b, in an episode if the policies have a memory."""
    masks = {"action_masks": {"a": ONE_ALLOWED, "b": ONE_ALLOWED[1]}} if kind.masked else {}
    _, state = policies.predict_with_state({"a": BATCH + 1, "b": BATCH[1] + 1}, deterministic=True, **masks)
    starts = {"a": STARTS, "b": False}
    return {
        "observations": {"a": BATCH, "b": BATCH[1]},
        **({"state": state, "episode_starts": starts} if state else {}),
        **masks,
    }


@pytest.mark.parametrize("deterministic", [True, False])
def test_every_algorithm_predicts_one_or_a_batch_with_masks_and_memory(trained: Any, deterministic: bool) -> None:
    kind, algorithm, bundle = trained
    given, space = inputs(kind, algorithm), bundle.spaces["a"].action
    found = []
    for policies in (algorithm, bundle):
        for policy in policies.policies.values():
            policy.set_random_seed(7)
        found.append(policies.predict_with_state(**given, deterministic=deterministic))
    (actions, state), (again, loaded) = found
    of_env = getattr(space, "of_env", space)
    assert all(of_env.contains(np.asarray(each)[()] if of_env is space else each) for each in actions["a"])
    actions, again = arrays(actions, bundle), arrays(again, bundle)
    assert np.shape(actions["a"]) == (3, *space.shape)
    assert np.shape(actions["b"]) == space.shape
    assert space.contains(np.asarray(actions["b"], space.dtype)[()])
    assert [*state] == [*loaded] == (["a", "b"] if "state" in given else [])
    if kind.masked:
        chosen = [actions[agent][..., 0] if kind.hybrid else actions[agent] for agent in "ab"]  # the choice comes first
        assert [each.tolist() for each in chosen] == [[0, 1, 2], 1]
    if deterministic:
        close(actions["a"], again["a"])
        for row in range(3):
            alone = {name: {"a": own["a"][row]} for name, own in given.items() if name != "state"}
            if state:
                alone["state"] = {"a": [part[:, row : row + 1] for part in given["state"]["a"]]}
            alone_actions, after = algorithm.predict_with_state(**alone, deterministic=True)
            close(arrays(alone_actions, bundle)["a"], actions["a"][row])
            for part, whole in zip(after.get("a", ()), state.get("a", ()), strict=True):
                close(part[:, 0], whole[:, row])


def arrays(actions: Any, policies: PolicyByAgent) -> Any:
    """The actions of agents as arrays, also those of several parts: then, as the policies choose them."""
    as_array: Any = getattr(policies.spaces["a"].action, "from_env", np.asarray)
    return {agent: as_array(given) for agent, given in actions.items()}


def is_on_policy(kind: Kind) -> bool:
    return kind.cadence == "n_steps"


def without_memory(given: dict[str, Any]) -> dict[str, Any]:
    return {name: own for name, own in given.items() if name not in ("state", "episode_starts")}


def test_values_distributions_and_log_probabilities_are_those_of_sb3s_policy(trained: Any) -> None:
    kind, algorithm, bundle = trained
    given = without_memory(inputs(kind, algorithm))
    observations, policy = given["observations"], algorithm.policies["a"].policy
    policy.set_training_mode(False)
    seen = th.as_tensor(BATCH)
    actions = algorithm.predict(**given)
    if is_on_policy(kind):
        taken = th.as_tensor(arrays(actions, bundle)["a"])
        memory: Any = ()
        if isinstance(algorithm.policies["a"], sb3_contrib.RecurrentPPO):
            shape = policy.lstm_hidden_state_shape
            zeros = tuple(th.zeros(shape[0], 3, shape[2]) for _ in range(2))
            memory = (RNNStates(zeros, zeros), th.ones(3))
        masks = {"action_masks": ONE_ALLOWED} if kind.masked else {}
        with th.no_grad():
            values, log_probs, entropy = policy.evaluate_actions(seen, taken, *memory, **masks)
        close(algorithm.value(observations)["a"], values.reshape(-1))
    elif kind.algorithm is marl_sb3.IQL:
        with th.no_grad():
            outputs, taken = policy.actor(seen), th.as_tensor(actions["a"])
            gaussian = th.distributions.Normal(th.tanh(outputs), np.exp(-5.0))
            of_actions: Any = gaussian if kind.continuous else th.distributions.Categorical(logits=outputs)
            log_probs, entropy = of_actions.log_prob(taken).reshape(3), of_actions.entropy().reshape(3)
    elif kind.chooses == "actor.mu":
        with th.no_grad():
            mean, log_std, _ = policy.actor.get_action_dist_params(seen)
            entropy, taken = None, th.as_tensor(actions["a"])
            gaussian = th.distributions.Normal(mean, log_std.exp()).log_prob(th.atanh(taken)).sum(dim=1)
            log_probs = gaussian - th.log(1 - taken**2 + 1e-6).sum(dim=1)
    else:
        with pytest.raises(ConfigError, match=r"'a': its policy 'a' \(\w+\) chooses actions without a distribution; "):
            algorithm.distribution(**given)
        return
    found = algorithm.log_prob(**given, actions=actions)
    np.testing.assert_allclose(found["a"], log_probs, rtol=1e-2, atol=1e-3)
    assert np.ndim(found["b"]) == 0
    distributions = algorithm.distribution(**given)
    assert distributions["a"].mode().shape[0] == 3
    assert distributions["b"].mode().shape[0] == 1
    if entropy is not None:
        close(distributions["a"].entropy(), entropy)
    for name in ("value",) if is_on_policy(kind) else ():
        assert np.ndim(getattr(algorithm, name)(observations)["b"]) == 0
    np.testing.assert_allclose(bundle.log_prob(**given, actions=actions)["b"], found["b"], rtol=1e-4)


def test_one_question_has_the_answers_of_several_methods(trained: Any) -> None:
    kind, algorithm, _ = trained
    given = inputs(kind, algorithm)
    want = RequestedOutputs(actions=True, deterministic=True, log_probs=kind.chooses in HAVING_DISTRIBUTIONS)
    has_q_values = not is_on_policy(kind) and not issubclass(kind.algorithm, marl_sb3.RecurrentSAC)
    want = want._replace(values=is_on_policy(kind), critic_state=is_on_policy(kind), q_values=has_q_values)
    answer = algorithm.ask(AgentInputs(**given), want)
    actions, state = algorithm.predict_with_state(**given, deterministic=True)
    unmasked = {name: by_agent for name, by_agent in given.items() if name != "action_masks"}
    values, critic_state = algorithm.value_with_state(**unmasked) if want.values else ({}, {})
    expected = {
        "actions": actions,
        "state": state,
        "values": values,
        "critic_state": critic_state,
        "distributions": {},
        "log_probs": algorithm.log_prob(**given, actions=actions) if want.log_probs else {},
        "q_values": algorithm.q_values(**unmasked) if want.q_values else {},
    }
    for name, by_agent in expected.items():
        np.testing.assert_equal(getattr(answer, name), by_agent, err_msg=name)
    taken = algorithm.ask(AgentInputs(**given, actions={"a": actions["a"]}), want._replace(q_values=False))
    assert taken.actions["a"] is actions["a"]  # none is chosen
    assert [*taken.state] == (["a", "b"] if "state" in given else [])
    np.testing.assert_equal(taken.log_probs, answer.log_probs)


def test_q_values_are_those_of_sb3s_networks(trained: Any) -> None:
    kind, algorithm, bundle = trained
    observations, policy = {"a": BATCH, "b": BATCH[1]}, algorithm.policies["a"].policy
    if is_on_policy(kind):
        with pytest.raises(ConfigError, match=r"'a': its policy 'a' \(\w+\) has no Q values; accepted: value"):
            algorithm.q_values(observations)
        return
    with pytest.raises(ConfigError, match=r"\(\w+\) has no values of observations; accepted: q_values"):
        algorithm.value(observations)
    found = algorithm.q_values(observations)
    close(bundle.q_values(observations)["a"], found["a"])
    allowed = {"a": np.ones((3, 3), np.bool_), "b": np.ones(3, np.bool_)}
    masks: Any = {"action_masks": allowed} if kind.masked else {}
    best = algorithm.predict(observations, deterministic=True, **masks)
    policy.set_training_mode(False)
    if not kind.continuous:
        assert found["a"].shape == (3, 3)
        assert found["b"].shape == (3,)
        if kind.algorithm is marl_sb3.IQL:  # whose actions are its actor's
            with th.no_grad():
                expected = th.minimum(*policy.critic.of_each(th.as_tensor(BATCH)))
            close(found["a"], expected)
        else:
            np.testing.assert_array_equal(found["a"].argmax(axis=1), best["a"])
        with pytest.raises(ConfigError, match="has a Q value of each action; leave the agent out of actions"):
            algorithm.q_values(observations, {"a": [0, 1, 2]})
        return
    close(algorithm.q_values(observations, {"a": best["a"]})["a"], found["a"])
    other = np.full((3, 1), 0.25, np.float32)
    with th.no_grad():
        expected = policy.critic(th.as_tensor(BATCH), th.as_tensor(other))
    expected = th.cat(expected, dim=1) if isinstance(expected, tuple) else expected.mean(dim=2)
    close(algorithm.q_values(observations, {"a": other})["a"], expected)
    assert found["b"].shape == expected.shape[1:]


MEMORIES = {
    "its own": {},
    "the actor's": {"enable_critic_lstm": False, "shared_lstm": True},
    "none": {"enable_critic_lstm": False},
}


@pytest.mark.parametrize("memory", MEMORIES)
def test_values_of_an_episode_follow_the_critics_memory(memory: str) -> None:
    kind = LEARNERS["stock RecurrentPPO"]
    network = {**kind.network, **MEMORIES[memory]}
    algorithm = make(kind)
    specs = {name: kind.spec(policy_kwargs=network) for name in ("a", "b")}
    algorithm = MultiAgentAlgorithm(kind.scripted(n_envs=2), specs, n_steps=6, seed=3, device="cpu")
    policy: Any = algorithm.policies["a"].policy
    sequence = np.array([[1, 1, step] for step in range(4)], np.float32)
    layers, _, size = policy.lstm_hidden_state_shape
    zeros = tuple(th.zeros(layers, 1, size) for _ in range(2))
    begins = np.array([True, False, True, False])
    with th.no_grad():
        expected, _, _ = policy.evaluate_actions(
            th.as_tensor(sequence), th.zeros(4), RNNStates(zeros, zeros), th.as_tensor(begins, dtype=th.float32)
        )
    state: Any = None
    critic: Any = None
    for step, seen in enumerate(sequence):
        starts = {"a": bool(begins[step])}
        values, critic = algorithm.value_with_state({"a": seen}, state, critic, starts)
        close(values["a"], expected[step].item())
        if step == 1 and memory == "its own":
            with pytest.raises(ConfigError, match=r"a critic with an LSTM of its own, .*; accepted: value_with_state"):
                algorithm.value({"a": seen}, state)
        _, state = algorithm.predict_with_state({"a": seen}, state, starts)
    assert [*critic] == (["a"] if memory == "its own" else [])


def test_observations_are_processed_and_actions_brought_back_to_the_policys_range() -> None:
    space = spaces.Box(np.float32(2), np.float32(6), (1,))
    env = make_vec_env(SampledEnv, observation_space=spaces.Box(-9, 9, (2,)), action_space=space)
    more = {"normalize_observations": True, "frame_stack": 2, "agent_indicator": True, "rescale_actions": True}
    spec = PolicySpec(stable_baselines3.PPO, policy_kwargs={"net_arch": [4]}, batch_size=4, **more)
    algorithm = MultiAgentAlgorithm(env, {"shared": spec}, n_steps=4, seed=1, device="cpu")
    algorithm.train_iteration()
    policy = algorithm.policies["shared"].policy
    processing = algorithm.bundle().processing["shared"]
    memory = processing.initial(1)
    first, second = np.array([1, 2], np.float32), np.array([-3, 4], np.float32)
    _, memory = processing.observe(first[None], memory, np.array([1]))
    seen, _ = processing.observe(second[None], memory, np.array([1]))
    with th.no_grad():
        expected, log_prob, _ = policy.evaluate_actions(th.as_tensor(seen), th.tensor([[0.5]]))
    _, state = algorithm.predict_with_state({"b": first})
    close(algorithm.value({"b": second}, state)["b"], expected.item())
    close(algorithm.log_prob({"b": second}, {"b": np.array([5], np.float32)}, state)["b"], log_prob.item())


def test_actions_count_from_where_the_space_counts() -> None:
    env = make_vec_env(SampledEnv, observation_space=spaces.Box(-9, 9, (2,)), action_space=spaces.Discrete(3, start=5))
    algorithm = MultiAgentAlgorithm(env, n_steps=4, batch_size=4, seed=1, device="cpu")
    seen = {"a": np.ones((3, 2), np.float32)}
    log_probs = algorithm.log_prob(seen, {"a": [5, 6, 7]})["a"]
    close(np.exp(log_probs), algorithm.distribution(seen)["a"].distribution.probs[0])
    for actions, accepted in (([4, 5, 6], "3 actions of"), ([5, 6], "3 actions of"), ([[5], [6], [7]], "3 actions of")):
        with pytest.raises(
            ConfigError, match=rf"agent 'a': actions is .*; accepted: {accepted} Discrete\(3, start=5\)"
        ):
            algorithm.log_prob(seen, {"a": actions})
    for method, arguments in (("value", ()), ("log_prob", ({"x": 1},)), ("distribution", ())):
        with pytest.raises(ConfigError, match="unknown agent 'x'"):
            getattr(algorithm, method)({"x": 1}, *arguments)
