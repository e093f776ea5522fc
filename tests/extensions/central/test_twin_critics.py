"""Policies with replay buffers whose critics see the whole env and all actions: what they see, and what follows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch as th
from small_trainings import Steps, assert_goes_on_exactly, same_weights
from toy_envs import MovingEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, SwappedAssignment, make_vec_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.central.critic import CentralPart
from marl_sb3.extensions.central.twin import TwinCritics
from marl_sb3.extensions.remote.sharded_vec_env import make_sharded_vec_env

SMALL: dict[str, Any] = {
    "learning_rate": 0.01,
    "learning_starts": 6,
    "batch_size": 8,
    "buffer_size": 200,
    "policy_kwargs": {"net_arch": [8]},
    "central_critic": True,
    "central_critic_net": [8],
}
# Agents end at different times, one joins late, and b waits in between.
PLAN = ({"a": (7, "truncated"), "b": (5, "terminated"), "c": (6, "truncated")}, {"c": 2}, {"b": [1, 3, 4]})
PLANS = [[PLAN]] * 2


def made(algo: str, policies: str = "shared", *, n_workers: int = 0, env_state: bool = False, **settings: Any) -> Any:
    return made_in(
        make_vec_env(MovingEnv, 2, 0, plans=PLANS, n_workers=n_workers, env_state=env_state), algo, policies, **settings
    )


def made_in(env: Any, algo: str, policies: str = "shared", **settings: Any) -> Any:
    ids = ["shared"] if policies == "shared" else [*"abc"]
    specs = {policy_id: PolicySpec(algo, **{**SMALL, **settings}) for policy_id in ids}
    return MultiAgentAlgorithm(env, specs, n_steps=4, seed=0, device="cpu")


def critics_of(algorithm: MultiAgentAlgorithm, policy_id: str = "shared") -> TwinCritics:
    (part,) = algorithm.parts.learners[policy_id].parts
    assert isinstance(part, TwinCritics)
    return part


# --- What they see ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_state", [False, True])
def test_the_replay_buffer_holds_what_all_saw_and_did(env_state: bool) -> None:
    """The first episode of the first env, by the script above; agents that wait or are gone have zeros."""
    algorithm, seen = made("sac", env_state=env_state, learning_starts=1000), Steps()
    algorithm.add_watcher(seen)
    algorithm.learn(2 * 8)
    buffer = algorithm.policies["shared"].replay_buffer
    numbers = buffer.observations.reshape(-1, 3)[: buffer.num_transitions]
    for agent, (name, acts) in enumerate({"a": [*range(7)], "b": [0, 2]}.items()):
        rows = [row for row, number in enumerate(numbers) if number[0] == agent + 1][: 2 * len(acts)]
        central, joint, after, following = (
            getattr(buffer, column).reshape(-1, getattr(buffer, column).shape[2])[rows][::2]
            for column in ("central", "joint_actions", "next_central", "next_seen")
        )
        assert len(central) == len(acts)
        for number, step in enumerate(acts):
            before = seen.steps[step]
            there = before.to_act[0][:, None]
            shown = (
                before.env_state[0] if env_state else [*(before.observations[0][0] * there).reshape(-1), *there[:, 0]]
            )
            code = np.eye(3)[agent]
            np.testing.assert_allclose(central[number], [*shown, *code])
            np.testing.assert_allclose(joint[number], (seen.actions[step][0] / 2 * there).reshape(-1), atol=1e-6)
            is_last = number == len(acts) - 1
            if not is_last:
                then = seen.steps[acts[number + 1]]
                flags = then.to_act[0]
                np.testing.assert_allclose(
                    following[number], [*(then.observations[0][0] * flags[:, None]).reshape(-1), *flags]
                )
                first = then.env_state[0] if env_state else following[number]
                np.testing.assert_allclose(after[number], [*first, *code])
            elif name == "a":  # truncated after the last step, with nobody else there any more
                end = seen.steps[acts[-1] + 1]
                final = [*end.final_observations[0, 0], *np.zeros(6), 1, 0, 0]
                np.testing.assert_allclose(following[number], final)
                np.testing.assert_allclose(after[number], [*(end.final_env_states[0] if env_state else final), *code])


def test_shards_tell_of_each_transition_what_all_agents_of_its_env_saw_and_did() -> None:
    env = make_sharded_vec_env(MovingEnv, 2, 2, plans=PLANS)
    algorithm = made_in(env, "sac").learn(2 * 24)
    buffer: Any = algorithm.policies["shared"].replay_buffer
    places = slice(None, buffer.pos)
    agents = buffer.central[places, :, -3:].argmax(2)[..., None]

    def own(column: Any, width: int) -> Any:
        return np.take_along_axis(column[places], agents * width + np.arange(width), 2)

    np.testing.assert_array_equal(own(buffer.central, 3), buffer.observations[places])
    np.testing.assert_array_equal(own(buffer.joint_actions, 2), buffer.actions[places])
    goes_on = (buffer.dones[places] == 0) | (buffer.timeouts[places] > 0)
    np.testing.assert_array_equal(own(buffer.next_seen, 3)[goes_on], buffer.next_observations[places][goes_on])
    assert 0 < goes_on.mean() < 1


# --- Targets, by hand ------------------------------------------------------------------------------------------------


def run_net(net: Any, inputs: Any) -> Any:
    """An MLP with ReLU, in NumPy."""
    layers = [layer for layer in net if isinstance(layer, th.nn.Linear)]
    for layer in layers:
        inputs = inputs @ layer.weight.detach().numpy().T.astype(np.float64) + layer.bias.detach().numpy()
        if layer is not layers[-1]:
            inputs = np.maximum(inputs, 0)
    return inputs


def least(critics: Any, central: Any, joint: Any) -> Any:
    return np.min([run_net(net, np.concatenate([central, joint], 1)) for net in critics.nets], axis=0)[:, 0]


def update_and_batch(algorithm: MultiAgentAlgorithm, policy_id: str) -> tuple[Any, Any, Any]:
    """Let critics take an update that changes nothing; returns its minibatch, the same with all agents, the losses."""
    buffer = algorithm.policies[policy_id].replay_buffer
    numbers: Any = np.random.get_state()  # noqa: NPY002
    batch = buffer.sample(32)
    np.random.set_state(numbers)  # noqa: NPY002
    th.manual_seed(7)
    critics_of(algorithm, policy_id).train(gradient_steps=1, batch_size=32)
    th.manual_seed(7)
    recorded = {name: float(value) for name, value in algorithm.policies[policy_id].logger.name_to_value.items()}
    return batch, buffer.drawn, recorded


def loss_of(critics: Any, drawn: Any, targets: Any) -> float:
    both = np.concatenate([drawn.central.numpy(), drawn.joint_actions.numpy()], 1)
    return float(sum(np.square(run_net(net, both)[:, 0] - targets).mean() for net in critics.nets))


def frozen(algo: str, policies: str, **settings: Any) -> Any:
    """A training with transitions, whose weights stay from now on, as its target networks always did."""
    rate = [[0, 0.01], [80, 0.01], [81, 0.0], [1000, 0.0]]
    return made(algo, policies, learning_rate=rate, tau=0.0, gamma=0.5, **settings).learn(88)


def test_targets_of_matd3_have_the_target_actors_of_all_agents() -> None:
    algorithm = frozen("td3", "per_agent", target_noise_clip=0.0, policy_delay=1)
    own = critics_of(algorithm, "b")
    batch, drawn, recorded = update_and_batch(algorithm, "b")
    seen, flags = drawn.next_seen.numpy()[:, :9].reshape(-1, 3, 3), drawn.next_seen.numpy()[:, 9:]
    joint = [
        np.tanh(run_net(algorithm.policies[agent].actor_target.mu, seen[:, index])) * flags[:, [index]]
        for index, agent in enumerate("abc")
    ]
    assert 0 < flags.mean() < 1
    assert 0 < batch.dones.mean() < 1
    values = least(own.targets, drawn.next_central.numpy(), np.concatenate(joint, 1))
    targets = batch.rewards.numpy()[:, 0] + 0.5 * (1 - batch.dones.numpy()[:, 0]) * values
    assert recorded["train/critic_loss"] == pytest.approx(loss_of(own.critics, drawn, targets), rel=1e-4)
    # The actor's loss has its own actions now, and those of the others then.
    done = drawn.joint_actions.numpy().copy()
    done[:, 2:4] = np.tanh(run_net(algorithm.policies["b"].actor.mu, batch.observations.numpy()))
    first = run_net(own.critics.nets[0], np.concatenate([drawn.central.numpy(), done], 1))
    assert recorded["train/actor_loss"] == pytest.approx(-first.mean(), rel=1e-4)


def test_targets_of_masac_subtract_the_entropy_of_the_agent_itself() -> None:
    algorithm = frozen("sac", "shared", ent_coef=0.25)
    own, actor = critics_of(algorithm), algorithm.policies["shared"].actor
    batch, drawn, recorded = update_and_batch(algorithm, "shared")
    places, flags = drawn.central.numpy()[:, -3:].argmax(1), drawn.next_seen.numpy()[:, 9:]
    with th.no_grad():  # in SB3's order
        now, of_now = actor.action_log_prob(batch.observations)
        after, of_after = actor.action_log_prob(batch.next_observations)
        joint = actor.action_log_prob(drawn.next_seen[:, :9].reshape(-1, 3))[0].numpy().reshape(32, 3, 2)
    joint = joint * flags[:, :, None]
    joint[range(32), places] = after.numpy()
    values = least(own.targets, drawn.next_central.numpy(), joint.reshape(32, 6)) - 0.25 * of_after.numpy()
    targets = batch.rewards.numpy()[:, 0] + 0.5 * (1 - batch.dones.numpy()[:, 0]) * values
    assert recorded["train/critic_loss"] == pytest.approx(loss_of(own.critics, drawn, targets) / 2, rel=1e-4)
    done = drawn.joint_actions.numpy().reshape(32, 3, 2).copy()
    done[range(32), places] = now.numpy()
    expected = 0.25 * of_now.numpy() - least(own.critics, drawn.central.numpy(), done.reshape(32, 6))
    assert recorded["train/actor_loss"] == pytest.approx(expected.mean(), rel=1e-4)


# --- What follows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "policies", "settings"),
    [
        ("sac", "shared", {}),
        ("td3", "per_agent", {"action_noise": {"normal": 0.1}}),
        ("ddpg", "shared", {"action_noise": {"ornstein_uhlenbeck": 0.1}}),
        ("sac", "per_agent", {"normalize_observations": True}),
        ("td3", "shared", {"frame_stack": 2}),
    ],
)
def test_a_resumed_training_is_the_same_as_one_that_was_not_interrupted(
    algo: str, policies: str, settings: Any, tmp_path: Path
) -> None:
    assert_goes_on_exactly(lambda: made(algo, policies, **settings), tmp_path, 40, 32)


@pytest.mark.parametrize("algo", ["sac", "ppo"])
def test_a_checkpoint_from_before_the_first_step_tells_what_critics_will_be_made(algo: str, tmp_path: Path) -> None:
    env = make_vec_env(MovingEnv, n_envs=2, seed=0, plans=PLANS)
    kept = SMALL if algo == "sac" else {"n_steps": 4, "batch_size": 4, "central_critic": True}
    whole = MultiAgentAlgorithm(env, {"shared": PolicySpec(algo, **kept)}, n_steps=4, seed=5, device="cpu")
    whole.save(tmp_path / "saved")
    whole.learn(40)
    env = make_vec_env(MovingEnv, n_envs=2, seed=5, plans=PLANS)
    assert same_weights(whole, MultiAgentAlgorithm.load(tmp_path / "saved", env, device="cpu").learn(40))


@pytest.mark.parametrize("algo", ["sac", "ppo"])
def test_a_checkpoint_in_which_adam_remembers_negative_squares_is_refused(algo: str) -> None:
    kept = SMALL if algo == "sac" else {"n_steps": 4, "batch_size": 4, "central_critic": True}
    env = make_vec_env(MovingEnv, n_envs=2, seed=0, plans=PLANS)
    algorithm = MultiAgentAlgorithm(env, {"shared": PolicySpec(algo, **kept)}, n_steps=4, device="cpu").learn(48)
    (part,) = algorithm.parts.learners["shared"].parts
    assert isinstance(part, CentralPart)
    state: Any = part.get_state()
    squares = state["critics"]["moments"]["nets.0.0.bias.exp_avg_sq"] if algo == "sac" else state["net"]["moments"][1]
    squares[0] = -1
    with pytest.raises(CheckpointError, match="moments"):
        part.read_state(StateReader(state, "checkpoint"))


def test_workers_give_the_same_weights() -> None:
    here = made("sac").learn(48)
    apart = made("sac", n_workers=2)
    assert same_weights(here, apart.learn(48))
    apart.env.close()


def test_actors_stay_as_they_were(tmp_path: Path) -> None:
    algorithm = made("sac").learn(48)
    plain = MultiAgentAlgorithm(algorithm.env, {"shared": PolicySpec("sac", policy_kwargs={"net_arch": [8]})})
    own, other = (set(each.policies["shared"].policy.state_dict()) for each in (algorithm, plain))
    assert own == other
    algorithm.save(tmp_path / "saved")
    loaded = marl_sb3.load_policies(tmp_path / "saved")
    seen = {"a": np.ones(3, np.float32)}
    actions = [each.predict(seen, deterministic=True)["a"] for each in (algorithm, loaded)]
    np.testing.assert_array_equal(*actions)


def test_a_training_goes_on_with_another_number_of_envs(tmp_path: Path) -> None:
    made("sac").learn(48).save(tmp_path / "saved")
    env = make_vec_env(MovingEnv, n_envs=1, seed=0, plans=PLANS)
    resumed = MultiAgentAlgorithm.load(tmp_path / "saved", env)
    critics = critics_of(resumed)
    before = [parameter.clone() for parameter in critics.critics.parameters()]
    resumed.learn(8, reset_num_timesteps=False)
    assert not all(map(th.equal, before, critics.critics.parameters()))


def test_other_algorithms_of_the_team_act_as_they_are() -> None:
    env = make_vec_env(MovingEnv, n_envs=2, seed=0, plans=PLANS)
    ppo = PolicySpec("ppo", n_steps=4, batch_size=4, policy_kwargs={"net_arch": [8]})
    td3 = PolicySpec("td3", **{**SMALL, "central_critic": False, "central_critic_net": (128, 128)})
    specs = {"a": PolicySpec("sac", **SMALL), "b": ppo, "c": td3}
    algorithm = MultiAgentAlgorithm(env, specs, policies_to_train=["a", "b"], n_steps=4, seed=0, device="cpu").learn(48)
    update_and_batch(algorithm, "a")
    seen = critics_of(algorithm, "a").afterwards(th.zeros(32, 2))
    assert seen.shape == (32, 12 + 6)
    assert bool((seen[:, 12:14] == 0).all())
    assert bool((seen[:, 14:] != 0).any(dim=0).all())


def test_they_learn_what_the_other_agent_sees_and_critics_of_one_agent_do_not(benchmark: Any) -> None:
    train = benchmark("team_task").train
    central, own = (train("sac", critics, timesteps=1600, seed=0) for critics in ("central", "own"))
    assert central < own / 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: made("sac", buffer_size=2 * 10**8).learn(8),
            "keeps in the replay buffer needs .* a smaller buffer_size",
        ),
        (lambda: made("tqc"), "central_critic, central_critic_net is set, and TQC"),
        (lambda: made("sac", n_steps=3), "central_critic does not go with this n_steps; accepted: n_steps=1"),
        (lambda: made("sac", replay_data="x"), "this replay_data; accepted: no recorded data"),
        (
            lambda: made("sac", optimize_memory_usage=True, replay_buffer_kwargs={"handle_timeout_termination": False}),
            "this replay_buffer_class; accepted: neither hindsight nor optimize_memory_usage",
        ),
        (lambda: made("td3", policy_kwargs={"share_features_extractor": True}), "share_features_extractor: false"),
    ],
)
def test_what_does_not_go_with_them_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_replay_buffers_that_memory_has_no_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = made("sac")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(ConfigError, match=r"keeps in the replay buffer needs 0\.0 GiB .* a smaller buffer_size"):
        algorithm.learn(8)


class Rewrites(marl_sb3.MultiAgentCallback):
    def on_trajectory(self, trajectory: Any) -> None:
        pass


def test_trainings_in_which_others_are_not_seen_are_refused() -> None:
    with pytest.raises(ConfigError, match="on_trajectory holds transitions back; accepted: no such hook"):
        made("sac").learn(8, callback=Rewrites())
    env = make_vec_env(MovingEnv, n_envs=2, seed=0, plans=PLANS)
    mapping = SwappedAssignment(dict(zip("abc", "xyx", strict=True)))
    specs = {name: PolicySpec("sac", **SMALL) for name in "xy"}
    with pytest.raises(ConfigError, match="other policies play the agents in turn; accepted: a mapping that stays"):
        MultiAgentAlgorithm(env, specs, policy_mapping_fn=mapping, seed=0).learn(8)
