"""Several agents learn at once, each by its own PPO: what marl_sb3 does, on one page.

It needs NumPy, PyTorch, Stable-Baselines3 and a PettingZoo `ParallelEnv` with `Discrete` actions. From top to bottom:
seeds; envs that are stepped together; SB3's rollout buffer for agents that do not act in every step; a policy, which is
an SB3 algorithm and the rows of its agents; the loop, in which all policies act and learn at the same time.

At the same seed, `marl_sb3.MultiAgentAlgorithm` computes the same weights and losses to the last bit, as a test checks.
The library adds other algorithms and spaces, speed, checks of what envs return, and all that surrounds a training.

python examples/one_file.py --timesteps 20000 --seed 1
"""

import argparse
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger

from marl_sb3.envs.arena import ArenaEnv

SETTINGS = {"n_steps": 100, "batch_size": 100, "n_epochs": 5, "learning_rate": 1e-3, "gamma": 0.9, "gae_lambda": 0.9}

# --- Seeds -----------------------------------------------------------------------------------------------------------


def derived_seed(seed: int, *numbers: int) -> int:
    """Return one of many seeds that follow from one. Hashes leave neighbouring seeds nothing in common."""
    return int(np.random.SeedSequence(seed, spawn_key=numbers).generate_state(1)[0])


# --- Envs ------------------------------------------------------------------------------------------------------------


@dataclass
class Step:
    """What a step of E envs with A agents led to."""

    observations: dict[str, np.ndarray]  # agent -> (E, ...): what it acts on next; filler where it does not
    to_act: np.ndarray  # (E, A) bool: who acts next
    rewards: np.ndarray  # (E, A) float32: an agent may be paid while it waits
    terminated: np.ndarray  # (E, A) bool: the agent has ended in this step, and there is nothing more to come
    truncated: np.ndarray  # (E, A) bool: it has ended, but only because somebody stopped the clock
    final_observations: dict[tuple[int, int], np.ndarray]  # (env, agent) -> what it saw at its end
    episode_over: np.ndarray  # (E,) bool


class Envs:
    """E envs that are stepped together, so that a policy acts for all of them in one pass of its network."""

    def __init__(self, make_env: Callable[[], Any], n_envs: int, seed: int) -> None:
        self.envs = [make_env() for _ in range(n_envs)]
        self.agents = self.envs[0].possible_agents
        self.seed = seed
        self.episodes = [-1] * n_envs  # index of the running one
        self.ended = np.zeros((n_envs, len(self.agents)), dtype=bool)  # who has ended in it

    def reset(self) -> Step:
        """Begin the first episode in all envs."""
        self.latest = self._blank()
        for index in range(len(self.envs)):
            self._begin_episode(index, self.latest)
        return self.latest

    def step(self, actions: np.ndarray) -> Step:
        """Step all envs with (E, A) actions; only those of agents that are to act are used."""
        step = self._blank()
        for index, env in enumerate(self.envs):
            acting = {self.agents[i]: actions[index, i] for i in np.flatnonzero(self.latest.to_act[index])}
            seen, rewards, terminated, truncated, _ = env.step(acting)
            for column, agent in enumerate(self.agents):
                place = index, column
                if not self.ended[place]:
                    step.rewards[place] = rewards.get(agent, 0)
                    step.terminated[place] = terminated.get(agent, False)
                    step.truncated[place] = truncated.get(agent, False)
                if step.terminated[place] or step.truncated[place]:
                    self.ended[place] = True
                    step.final_observations[place] = np.array(seen[agent])  # a copy: the env may reuse its array
            self._find_turns(index, seen, step)
            # Agents may end at different times. When nobody is left, the next episode begins at once, and the next
            # observations belong to that one.
            if not step.to_act[index].any():
                step.episode_over[index] = True
                self._begin_episode(index, step)
        self.latest = step
        return step

    def _blank(self) -> Step:
        spaces = {agent: self.envs[0].observation_space(agent) for agent in self.agents}
        seen = {agent: np.zeros((len(self.envs), *space.shape), space.dtype) for agent, space in spaces.items()}
        to_act, terminated, truncated = (np.zeros(self.ended.shape, dtype=bool) for _ in range(3))
        rewards, episode_over = np.zeros(self.ended.shape, dtype=np.float32), np.zeros(len(self.envs), dtype=bool)
        return Step(seen, to_act, rewards, terminated, truncated, {}, episode_over)

    def _begin_episode(self, index: int, step: Step) -> None:
        self.episodes[index] += 1
        self.ended[index] = False
        # The seed depends on env and episode alone: an episode is the same whatever was played before it.
        seed = derived_seed(self.seed, index, self.episodes[index]) >> 1  # some envs take 31 bits
        observations, _ = self.envs[index].reset(seed=seed)
        self._find_turns(index, observations, step)

    def _find_turns(self, index: int, observations: Mapping[str, Any], step: Step) -> None:
        for column, agent in enumerate(self.agents):
            if agent in self.envs[index].agents and not self.ended[index, column]:
                step.to_act[index, column] = True
                step.observations[agent][index] = observations[agent]


# --- Experience ------------------------------------------------------------------------------------------------------


class TurnBuffer(RolloutBuffer):
    """SB3's rollout buffer for rows that need not act in every step.

    A transition runs from an action to the next turn of the same row, or to its end, and what the row is paid meanwhile
    belongs to that action, no matter who acts in between. Lines in which a row does not act are filler, which
    enters neither returns nor minibatches. If all rows act in every step, this is SB3's buffer.
    """

    columns = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs")
    carried: Mapping[str, np.ndarray] | None = None  # the transitions that were open when the rollout before ended
    waiting: np.ndarray  # (rows,) bool: which rows have one

    def reset(self) -> None:
        """Empty the buffer; open transitions of the rollout before go on in its first line."""
        super().reset()
        self.acted = np.zeros((self.buffer_size, self.n_envs), dtype=bool)
        self.open_at = np.full(self.n_envs, -1)  # the line of each row's open transition; -1: it has none
        if self.carried is not None:
            for name, array in self.carried.items():
                getattr(self, name)[0, self.waiting] = array
            self.acted[0] = self.waiting
            self.open_at[self.waiting] = 0

    def begin(self, acting: np.ndarray, **arrays: np.ndarray) -> None:
        """Open a transition in each row that acts, (rows,) bool; the arrays are those of these rows."""
        for name, array in arrays.items():
            column = getattr(self, name)
            column[self.pos, acting] = array.reshape(-1, *column.shape[2:])
        self.acted[self.pos] |= acting
        self.open_at[acting] = self.pos
        self.pos += 1

    def pay(self, rewards: np.ndarray, ended: np.ndarray) -> None:
        """Add rewards, (rows,), to the open transitions, and close those of rows that have ended, (rows,) bool."""
        rows = np.flatnonzero(self.open_at >= 0)  # what a row is paid before its first action is nobody's merit
        self.rewards[self.open_at[rows], rows] += rewards[rows]
        self.open_at[ended] = -1

    def complete(self, next_values: np.ndarray, starts: np.ndarray, to_act: np.ndarray) -> None:
        """Compute returns and advantages by GAE (Schulman et al. 2016, eq. 16), along the turns of each row.

        Args:
            next_values: (rows,) values of the observations that rows act on next.
            starts: (rows,) bool; whether these begin an episode.
            to_act: (rows,) bool; the others wait, and their open transitions are moved to the next rollout. Until then,
                the value that was estimated when such a transition began stands for all that follows.
        """
        self.waiting = (self.open_at >= 0) & ~to_act
        places = self.open_at[self.waiting], np.flatnonzero(self.waiting)
        self.carried = {name: getattr(self, name)[places] for name in self.columns}
        self.acted[places] = False
        next_values[self.waiting] = self.carried["values"]
        goes_on = 1 - starts.astype(np.float32)
        goes_on[self.waiting] = 1 - self.carried["episode_starts"]
        advantage = np.zeros(self.n_envs, dtype=np.float32)
        for line in reversed(range(self.buffer_size)):
            acted = self.acted[line]
            delta = self.rewards[line] + self.gamma * next_values * goes_on - self.values[line]
            advantage = np.where(acted, delta + self.gamma * self.gae_lambda * goes_on * advantage, advantage)
            next_values = np.where(acted, self.values[line], next_values)
            goes_on = np.where(acted, 1 - self.episode_starts[line], goes_on)
            self.advantages[line] = advantage
        self.returns = self.advantages + self.values

    def get(self, batch_size: int) -> Iterator[Any]:
        """Yield the minibatches of one pass over all transitions, as SB3 draws them; `PPO.train` asks for them."""
        if not self.generator_ready:
            kept = self.swap_and_flatten(self.acted).reshape(-1)
            for name in ("observations", "actions", "values", "log_probs", "advantages", "returns"):
                setattr(self, name, self.swap_and_flatten(getattr(self, name))[kept])
            self.generator_ready = True
        order = np.random.permutation(len(self.returns))  # noqa: NPY002 - SB3's stream of random numbers
        for start in range(0, len(order), batch_size):
            yield self._get_samples(order[start : start + batch_size])


# --- Policies --------------------------------------------------------------------------------------------------------


class Policy:
    """A PPO of SB3 and its rows: row `e * len(agents) + i` is its i-th agent in env e.

    With one agent, the policy is that agent's alone. With several, which need the same spaces, they share it, and what
    any of them experiences is a sample for all.
    """

    def __init__(self, envs: Envs, agents: list[str], seed: int, **settings: Any) -> None:
        self.agents, self.columns = agents, [envs.agents.index(agent) for agent in agents]
        # No policy can step the envs alone. So the algorithm gets no env but only spaces, as when SB3 loads a zip file.
        given = {"seed": seed, "device": "cpu", "rollout_buffer_class": TurnBuffer, **settings}
        self.ppo = PPO("MlpPolicy", None, **given, _init_setup_model=False)
        self.ppo.observation_space = envs.envs[0].observation_space(agents[0])
        self.ppo.action_space = envs.envs[0].action_space(agents[0])
        self.ppo.n_envs = len(envs.envs) * len(agents)
        self.ppo._setup_model()
        self.ppo.set_logger(Logger(folder=None, output_formats=[]))
        self.ppo.policy.set_training_mode(False)
        self.starts = np.ones(self.ppo.n_envs, dtype=bool)  # the rows whose next action begins an episode

    def act(self, step: Step) -> np.ndarray:
        """Open a transition for each row that is to act; returns the actions of the policy's agents, (E, agents)."""
        acting, actions = self._rows(step.to_act), np.zeros(self.ppo.n_envs, dtype=np.int64)
        arrays = {"observations": self._observations(step)[acting], "episode_starts": self.starts[acting]}
        if acting.any():
            with torch.no_grad():
                outputs = self.ppo.policy(torch.as_tensor(arrays["observations"]))  # it is not shown filler
            arrays |= zip(("actions", "values", "log_probs"), (tensor.numpy() for tensor in outputs), strict=True)
            actions[acting] = arrays["actions"]
        self.ppo.rollout_buffer.begin(acting, **arrays)
        self.starts = self.starts & ~acting
        return actions.reshape(-1, len(self.agents))

    def observe(self, step: Step) -> None:
        """Pay all rows, whether or not they have acted, and note who has ended.

        Truncation is not termination. Where an agent was only stopped, its last reward goes on with the discounted
        value of what it saw then; where it has terminated, nothing follows.
        """
        rewards = self._rows(step.rewards)
        for row in np.flatnonzero(self._rows(step.truncated & ~step.terminated)):
            env_index, place = divmod(row, len(self.agents))
            final = step.final_observations[env_index, self.columns[place]]
            rewards[row] += (self.ppo.gamma * self._values(final[None]))[0]  # one by one, as in SB3: for the last bits
        ended = self._rows(step.terminated | step.truncated)
        self.ppo.rollout_buffer.pay(rewards, ended)
        self.starts = self.starts | ended

    def learn(self, step: Step) -> dict[str, float]:
        """Update by SB3's own `train`, after the rollout that has led to this step; returns what SB3 has logged."""
        to_act, values = self._rows(step.to_act), np.zeros(self.ppo.n_envs, dtype=np.float32)
        values[to_act] = self._values(self._observations(step)[to_act])
        self.ppo.rollout_buffer.complete(values, self.starts, to_act)
        self.ppo.train()
        logged = dict(self.ppo.logger.name_to_value)
        self.ppo.logger.dump()
        self.ppo.policy.set_training_mode(False)
        self.ppo.rollout_buffer.reset()
        return logged

    def _rows(self, per_agent: np.ndarray) -> np.ndarray:
        return per_agent[:, self.columns].reshape(-1)

    def _observations(self, step: Step) -> np.ndarray:
        seen = np.stack([step.observations[agent] for agent in self.agents], axis=1)
        return seen.reshape(-1, *seen.shape[2:])

    def _values(self, observations: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.ppo.policy.predict_values(torch.as_tensor(observations)).numpy().reshape(-1)


def make_policies(envs: Envs, policy_of: Mapping[str, str], seed: int, **settings: Any) -> dict[str, Policy]:
    """Make the policies of a mapping agent -> policy id.

    The first one has the run's seed, the others have seeds of their own: else all would begin with the same weights.
    SB3 seeds the global generators with each of them, so that the last one decides what is sampled.
    """
    policies = {}
    for index, policy_id in enumerate(dict.fromkeys(policy_of.values())):
        agents = [agent for agent in envs.agents if policy_of[agent] == policy_id]
        policies[policy_id] = Policy(envs, agents, derived_seed(seed, index) if index else seed, **settings)
    return policies


# --- Training --------------------------------------------------------------------------------------------------------


def train(envs: Envs, policies: Mapping[str, Policy], timesteps: int) -> Iterator[dict[str, Any]]:
    """Train for so many env steps, a `step()` of one env each; yields the metrics of every iteration.

    An iteration is a rollout, in which all policies act in the same episodes, and then an update of each. To each of
    them, the others are a part of the env that changes with every update.
    """
    n_steps = next(iter(policies.values())).ppo.n_steps
    env_steps, finished, paid = 0, deque(maxlen=100), np.zeros((len(envs.envs), len(envs.agents)))
    step = envs.reset()
    while env_steps < timesteps:
        for _ in range(n_steps):
            actions = np.zeros(step.to_act.shape, dtype=np.int64)
            for policy in policies.values():
                actions[:, policy.columns] = policy.act(step)
            step = envs.step(actions)
            for policy in policies.values():
                policy.observe(step)
            paid += step.rewards  # the plain rewards: no values are in the returns that are shown
            finished.extend(paid[step.episode_over])
            paid[step.episode_over] = 0
        env_steps += n_steps * len(envs.envs)
        means = np.mean(finished, axis=0) if finished else [np.nan] * len(envs.agents)
        yield {
            "env_steps": env_steps,
            "returns": dict(zip(envs.agents, means, strict=True)),  # over the last 100 episodes
            "learners": {policy_id: policy.learn(step) for policy_id, policy in policies.items()},
        }


def main(timesteps: int, seed: int, shared: bool) -> None:
    """Train in the arena, and print a line for every iteration."""
    torch.set_num_threads(1)  # networks this small are faster so
    envs = Envs(ArenaEnv, 20, seed)
    policies = make_policies(envs, {agent: "shared" if shared else agent for agent in envs.agents}, seed, **SETTINGS)
    titles = ["env steps", *(f"return {agent}" for agent in envs.agents)]
    titles += [f"{name} {policy_id}" for policy_id in policies for name in ("value loss", "entropy")]
    print(*(title.rjust(18) for title in titles))
    for result in train(envs, policies, timesteps):
        numbers = list(result["returns"].values())
        for logged in result["learners"].values():
            numbers += [logged["train/value_loss"], -logged["train/entropy_loss"]]
        print(f"{result['env_steps']:18,}", *(f"{number:18.3f}" for number in numbers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=20_000, help="env steps; default: 20000")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--shared", action="store_true", help="one policy for both agents, instead of one for each")
    arguments = parser.parse_args()
    main(arguments.timesteps, arguments.seed, arguments.shared)
