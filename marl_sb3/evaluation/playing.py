"""Evaluations: policies play complete episodes in envs of their own; a training in progress is not affected.

The numbers are those of `metrics.EpisodeTracker`, under the names that a training result has below `env_runners/`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th

from marl_sb3.core.acting.actor import ActingWatcher
from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.config.values import Count, PositiveInt, counted, require
from marl_sb3.core.mapping import Deterministic, zero_actions
from marl_sb3.core.metrics.episodes import Episode, EpisodeTracker
from marl_sb3.core.metrics.names import Result, finite_or_none, flatten
from marl_sb3.core.sb3.inference import preserve_noise
from marl_sb3.core.state.randomness import preserve_rng
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.seeding import seed_of
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation.opponents import RANDOM, Against, bundle_of, misfit
from marl_sb3.evaluation.pairing import Pairing
from marl_sb3.evaluation.played import EpisodeDigests, Played, Seat, mean_of, metrics_of
from marl_sb3.types import AgentID

if TYPE_CHECKING:
    from marl_sb3.runs.schema import TrainConfig


def evaluate_policies(
    algo: MultiAgentAlgorithm | PolicyBundle,
    env: MultiAgentVecEnv,
    n_episodes: int = 20,
    deterministic: Deterministic | None = None,
    seed: int | None = None,
    n_env_steps: int | None = None,
    against: Against | None = None,
    seats: Sequence[Sequence[AgentID]] | None = None,
) -> Result:
    """Return the metrics of `play`; of `play_seats` if there is an opponent, `against`.

    Args:
        algo, env, n_episodes, deterministic, seed, n_env_steps: see `play`.
        against: who plays the other agents: `random` (uniformly among the actions that masks allow); a player of the
            package, such as `minimax2`; `MODULE:CLASS` or a class, which is called once for each agent, with `agent=`
            its id if it has a parameter of this name, else without arguments; an object with
            `act(observation, mask, rng)`, see `evaluation.Opponent`; or policies of another run: what `load_policies`
            or `load_run` returns, or an algorithm. None: all agents are played by their policies.
        seats: see `play_seats`.

    Returns:
        A nested dictionary with the names of a training result below `env_runners`: `["episode_return_mean"]`,
        `["agent_episode_returns_mean"]["agent1"]`, ... With an opponent, one for each seat, by the names of its agents:
        `["player_1"]["agent_episode_returns_mean"]["player_1"]`. Where returns oppose each other, it has the shares of
        episodes `won`, `drawn` and `lost`, too: see `outcomes`.

    Raises: see `play`.
    """
    options: dict[str, Any] = {"n_episodes": n_episodes, "n_env_steps": n_env_steps, "seed": seed}
    if against is not None:
        return metrics_of(play_seats(algo, env, against, seats, deterministic=deterministic, **options))
    if seats is not None:
        raise ConfigError("seats needs an opponent; accepted: with against", key="seats")
    return play(algo, env, deterministic=deterministic, **options).metrics


def play(
    algo: MultiAgentAlgorithm | PolicyBundle,
    env: MultiAgentVecEnv,
    n_episodes: int = 20,
    deterministic: Deterministic | None = None,
    seed: int | None = None,
    n_env_steps: int | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    acting: Collection[AgentID] | None = None,
    against: Against = RANDOM,
    watchers: Sequence[ActingWatcher] = (),
    with_log_probs: bool = False,
    compares: bool = False,
) -> Played:
    """Let the policies play complete episodes.

    The number of episodes of each env is fixed beforehand, see `episodes_of_env`: counting the first `n_episodes` to
    end would favour short ones. `n_env_steps` instead counts the episodes that end within a number of env steps, as
    RLlib's `evaluation_duration_unit="timesteps"` does. That favours short episodes, and there may be no complete one.

    Args:
        algo: an algorithm, the training of which is not changed (see `preserve_training_state`), or policies from
            `load_policies`.
        env: envs with the agents and spaces of the training. With `algo.env`, its running episodes are lost, the next
            rollout begins new ones, and `seed` becomes the envs' seed.
        n_episodes: number of complete episodes, over all envs together.
        deterministic: the most likely actions (True), or sampled ones as in the training (False); or a mapping from
            policy ids to these, in which policies that are left out are True. None: the `evaluation_deterministic` of
            `algo`, which is True unless it was set.
        seed: seed of the episodes and the actions: the results are the same each time, with any vectorizer. None: the
            envs keep their seeds, and actions are drawn at random.
        n_env_steps: number of env steps over all envs together, instead of `n_episodes`; rounded up to a multiple of
            the number of envs.
        on_episode: called with each counted episode.
        acting: the agents whose policies act; the others are played by `against`, and need no policy. None: all.
        against: who plays the others: `random` (uniformly among the actions that masks allow), or as in
            `evaluate_policies`; or a mapping from each of these agents to who plays it, which is no policy.
        watchers: see every step, also those of episodes that are not counted.
        with_log_probs: whether watchers see log-probabilities and values of sampled actions; see `PredictingPolicy`.
        compares: find out whether all episodes are alike.

    Raises:
        ConfigError: a number is not accepted, or the env has other agents or spaces.
        EnvError: the env broke the `ParallelEnv` contract.
        HookError: an opponent failed.
    """
    n_episodes = require("n_episodes", n_episodes, PositiveInt)
    n_env_steps = require("n_env_steps", n_env_steps, PositiveInt | None)
    seed = require("seed", seed, Count | None)
    require_same_agents(algo, env, acting)
    bundle = _bundle(algo)
    if deterministic is None:
        deterministic = bundle.evaluation_deterministic
    ours = list(env.agents) if acting is None else [agent for agent in env.agents if agent in acting]
    others = [agent for agent in env.agents if agent not in ours]
    pairing = Pairing(env, bundle, against, ours, others)
    if pairing.theirs is not None:
        require_same_agents(pairing.theirs, env, None if acting is None else others)
    tracker = _tracker(bundle, env, n_episodes if n_env_steps is None else n_env_steps + env.num_envs, ours)
    counted = list[Episode]()
    digests = EpisodeDigests()  # type: ignore[abstract]  # hooks without a body do nothing
    with preserve_training_state(pairing.theirs or bundle), preserve_training_state(bundle, seed):
        for trained in (algo, against):
            if isinstance(trained, MultiAgentAlgorithm) and env is trained.env:
                trained.forget_episodes()
        if seed is not None:
            env.seed(seed)
        watching = [*watchers, digests] if compares else watchers
        by_step = _finished_by_step(env, tracker, pairing, (deterministic, seed, with_log_probs), watching)
        if n_env_steps is None:
            quotas = [episodes_of_env(index, env.num_envs, n_episodes) for index in range(env.num_envs)]
            finished = _quota_of_each_env(by_step, quotas)
        else:
            finished = chain.from_iterable(islice(by_step, math.ceil(n_env_steps / env.num_envs)))
        for episode in finished:
            counted.append(episode)
            if on_episode is not None:
                on_episode(episode)
    alike = len(counted) > 1 and len(digests.finished) == 1 and all(e.custom == counted[0].custom for e in counted)
    return Played(_metrics(tracker, counted), tuple(counted), env.agents, alike if compares else None)


def play_seats(
    algo: MultiAgentAlgorithm | PolicyBundle,
    env: MultiAgentVecEnv,
    against: Against | None = RANDOM,
    seats: Sequence[Sequence[AgentID]] | None = None,
    **options: Any,
) -> dict[Seat, Played]:
    """Let the policies play against an opponent, in one seat after the other.

    Args:
        algo, env: see `play`.
        against: see `evaluate_policies`; None: the policies play all agents, which is the empty seat.
        seats: the agents that are played by their policies while the opponent plays all others: several agents may be
            one side. None: each agent alone.
        options: further arguments of `play`, for each seat.

    Raises:
        ConfigError: a seat has an unknown agent, none or all of them; or as `play`.
    """
    if against is None:
        return {(): play(algo, env, **options)}
    require_same_agents(algo, env)
    chosen = seats_of(env.agents, seats)
    return {seat: play(algo, env, acting=seat, against=against, **options) for seat in chosen}


def seats_of(agents: Sequence[AgentID], seats: Sequence[Sequence[AgentID]] | None) -> list[tuple[AgentID, ...]]:
    """Check the seats that are asked for; None: each agent alone.

    Raises:
        ConfigError: a seat has an unknown agent, none or all of them.
    """
    chosen = [(agent,) for agent in agents] if seats is None else [tuple(dict.fromkeys(seat)) for seat in seats]
    for seat in chosen:
        for agent in seat:
            if agent not in agents:
                raise ConfigError(f"seats: unknown agent {agent!r}; the env has {', '.join(agents)}", key="agents")
        if len(seat) in (0, len(agents)):
            words = "no agent" if not seat else f"all agents ({', '.join(agents)}), which leaves none to an opponent"
            raise ConfigError(f"seats: a seat has {words}; accepted: some agents of several", key="agents")
    return list(dict.fromkeys(chosen))


def evaluate_against_random(
    algo: MultiAgentAlgorithm | PolicyBundle,
    env: MultiAgentVecEnv,
    n_episodes: int = 20,
    deterministic: Deterministic | None = None,
    seed: int | None = None,
    n_env_steps: int | None = None,
    baseline: Mapping[AgentID, float | None] | None = None,
) -> Result:
    """Measure what each policy gains over a random one in its seat, where all other agents act at random.

    It measures how good policies are in games in which one agent wins what the others lose.

    Args:
        algo, env, deterministic, seed: see `play`.
        n_episodes: episodes for each agent, and as many in which all act at random.
        n_env_steps: instead of `n_episodes`.
        baseline: the result of `random_returns`; None: it is measured.

    Returns:
        `gain_mean` over all agents, `agent_gains_mean` by agent and `module_gains_mean` by policy: mean returns beyond
        those of random agents; None where no episode has a value.
    """
    options: dict[str, Any] = {"n_episodes": n_episodes, "n_env_steps": n_env_steps, "seed": seed}
    alone = random_returns(algo, env, **options) if baseline is None else baseline
    options["deterministic"] = deterministic
    gains: dict[AgentID, float | None] = {}
    for agent in env.agents:
        played = mean_of(play(algo, env, acting=[agent], **options).agent_returns(agent))
        without = alone[agent]
        gains[agent] = None if played is None or without is None else played - without
    policy_of = _bundle(algo).policy_of
    by_policy = {
        policy_id: mean_of(gains[agent] for agent in env.agents if policy_of[agent] == policy_id)
        for policy_id in _bundle(algo).policies
    }
    return {"gain_mean": mean_of(gains.values()), "agent_gains_mean": gains, "module_gains_mean": by_policy}


def random_returns(
    algo: MultiAgentAlgorithm | PolicyBundle,
    env: MultiAgentVecEnv,
    n_episodes: int = 20,
    seed: int | None = None,
    n_env_steps: int | None = None,
) -> dict[AgentID, float | None]:
    """Measure each agent's mean return where all agents act at random; see `evaluate_against_random`."""
    played = play(algo, env, n_episodes, seed=seed, n_env_steps=n_env_steps, acting=())
    return {agent: mean_of(played.agent_returns(agent)) for agent in env.agents}


def episodes_of_env(env_index: int, num_envs: int, n_episodes: int) -> int:
    """Return how many of `n_episodes` an env plays: as even as possible, as in SB3's `evaluate_policy`."""
    return (n_episodes + env_index) // num_envs


def metric_names(algo: MultiAgentAlgorithm | PolicyBundle, env: MultiAgentVecEnv) -> list[str]:
    """Return the flat names of all metrics of an evaluation, without a prefix."""
    return list(flatten(_metrics(_tracker(_bundle(algo), env, window=1), [])))


def require_same_agents(
    algo: MultiAgentAlgorithm | PolicyBundle, env: MultiAgentVecEnv, acting: Collection[AgentID] | None = None
) -> None:
    """Refuse envs that the policies cannot act in.

    Args:
        acting: the agents that they act for; None: all.

    Raises:
        ConfigError: the agents or their spaces are not those of the training, or an argument has a wrong type.
    """
    bundle = _bundle(algo)
    if not isinstance(env, MultiAgentVecEnv):
        raise ConfigError(f"env is {env!r:.200}; accepted: envs from make_vec_env", key="env")
    if env.steps_apart:
        words = "clients step the env, so that no episode can be played in it here"
        raise ConfigError(f"{words}; accepted: another env with the same agents and spaces, as --env (env=)", key="env")
    named = set(bundle.policy_of)
    if set(env.agents) != named if acting is None else not set(acting) <= named:
        agents, ours = ", ".join(env.agents), ", ".join(bundle.policy_of)
        raise ConfigError(f"the env has agents {agents}; the policies act for {ours}", key="env")
    if (fault := misfit(bundle, env, env.agents if acting is None else acting)) is not None:
        raise ConfigError(fault, key="env")


def _bundle(algo: MultiAgentAlgorithm | PolicyBundle) -> PolicyBundle:
    found = bundle_of(algo)
    if found is not None:
        return found
    raise ConfigError(
        f"algo is {algo!r:.200}; accepted: a MultiAgentAlgorithm or the policies of a PolicyBundle; "
        "MultiAgentAlgorithm.load(folder, env) and load_policies(folder) make them from a checkpoint or a run folder",
        key="algo",
    )


# --- The training in progress -----------------------------------------------------------------------------------------


@contextmanager
def preserve_training_state(algo: MultiAgentAlgorithm | PolicyBundle, seed: int | None = None) -> Iterator[None]:
    """Restore on exit what acting changes: random generators, and the modes and noise of policies.

    Inside, the generators of PyTorch (and of CUDA, if it is in use), NumPy and Python are seeded, and those of the
    action spaces, of which policies that explore draw.

    Args:
        algo: the algorithm or bundle that acts.
        seed: seed of the generators; None: from the operating system's entropy.
    """
    modes = [(module, module.training) for a in algo.policies.values() for module in a.policy.modules()]
    spaces = [a.action_space.np_random.bit_generator for a in algo.policies.values()]
    states = [generator.state for generator in spaces]
    with preserve_rng(), preserve_noise(algo.policies.values()):
        try:
            seed_generators(seed)
            for generator, own in zip(spaces, np.random.SeedSequence(seed).spawn(len(spaces)), strict=True):
                generator.state = type(generator)(own).state
            yield
        finally:
            for generator, state in zip(spaces, states, strict=True):
                generator.state = state
            for module, training in modes:
                module.training = training


def seed_generators(seed: int | None) -> None:
    """Seed the global generators of PyTorch, CUDA if it is in use, NumPy and Python as evaluations do.

    Args:
        seed: None: from the operating system's entropy.
    """
    of_torch, of_numpy, of_python = np.random.SeedSequence(seed).generate_state(3).tolist()
    th.default_generator.manual_seed(of_torch)
    if th.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # Not before the first use of CUDA: PyTorch would keep the seed for that use, possibly by a training.
        th.cuda.manual_seed_all(of_torch)
    np.random.seed(of_numpy)  # noqa: NPY002 - SB3 uses the global generator
    random.seed(of_python)


# --- Playing ---------------------------------------------------------------------------------------------------------


def _quota_of_each_env(by_step: Iterable[list[Episode]], quotas: list[int]) -> Iterator[Episode]:
    """Yield the first episodes of each env, up to its quota; episodes beyond it are not counted."""
    for finished in by_step:
        for episode in finished:
            if quotas[episode.env_index] > 0:
                quotas[episode.env_index] -= 1
                yield episode
        if not any(quotas):
            return


def _finished_by_step(
    env: MultiAgentVecEnv,
    tracker: EpisodeTracker,
    pairing: Pairing,
    begin: tuple[Deterministic, int | None, bool],
    watchers: Sequence[ActingWatcher],
) -> Iterator[list[Episode]]:
    """Yield the episodes finished by each step of all envs, endlessly; watchers see what the policies do."""
    step = env.reset()
    tracker.begin()
    pairing.begin(*begin)
    for watcher in watchers:
        watcher.begin_episodes(step)
    while True:
        actions = zero_actions(env)
        acted = pairing.act(step, actions)
        for watcher in watchers:
            watcher.before_step(step, acted, actions)
        step = env.step(actions)
        for watcher in watchers:
            watcher.after_step(step)
        pairing.observe(step)
        yield tracker.record(step)


# --- Numbers ---------------------------------------------------------------------------------------------------------


def _tracker(
    bundle: PolicyBundle, env: MultiAgentVecEnv, window: int, acting: Collection[AgentID] | None = None
) -> EpisodeTracker:
    policy_of = {agent: policy_id for agent, policy_id in bundle.policy_of.items() if acting is None or agent in acting}
    return EpisodeTracker(env, policy_of, window, bundle.custom_metrics)


def _metrics(tracker: EpisodeTracker, counted: Sequence[Episode]) -> Result:
    """Return the metrics of the counted episodes; the tracker has followed all episodes."""
    tracker.episodes.clear()
    tracker.episodes.extend(counted)
    summary = tracker.summary()
    return finite_or_none(
        {
            **summary,
            "num_episodes": len(counted),
            "num_env_steps_sampled": sum(episode.length for episode in counted),
            "num_agent_steps_sampled": {
                agent: sum(episode.agent_steps[agent] for episode in counted) for agent in summary["agent_steps"]
            },
        }
    )


# --- The evaluation of a run ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluationPlan:
    """The settings of an evaluation."""

    n_episodes: int  # complete episodes over all envs together
    deterministic: Deterministic  # the most likely actions (True) or sampled ones (False), of all policies or by policy
    seed: int  # seed of the episodes and the actions
    n_envs: int  # envs that step together
    film_episodes: int = 0  # how many episodes of env 0 are filmed
    # who plays the other agents, see `evaluate_policies`; None: all are played by their policies
    against: Against | None = None
    seats: Sequence[Sequence[AgentID]] | None = None  # see `play_seats`

    @classmethod
    def of_run(
        cls,
        config: TrainConfig,
        n_episodes: int = 20,
        deterministic: Deterministic | None = None,
        seed: int | None = None,
        n_envs: int | None = None,
        film_episodes: int = 0,
    ) -> EvaluationPlan:
        """Make a plan, with the run's settings for arguments that are not given.

        Args:
            deterministic: None: the run's `evaluation.deterministic`.
            seed: None: follows from the run's, so that evaluations compare.
            n_envs: None: as in the training, but no more than episodes, and so few that env 0 plays all filmed ones.

        Raises:
            ConfigError: env 0 plays fewer than `film_episodes` episodes.
        """
        # All envs play the same number of episodes, or some play one more; env 0 is not among these.
        most = max(1, n_episodes // film_episodes if film_episodes else n_episodes)
        if n_envs is None:
            n_envs = min(config.n_envs, most)
        elif film_episodes and n_envs > most:
            raise ConfigError(
                f"--video-episodes is {film_episodes}, but in {n_envs} envs env 0 plays {n_episodes // n_envs} of the "
                f"{n_episodes} episodes; accepted: --n-envs up to {most}",
                key="--n-envs",
            )
        if deterministic is None:
            deterministic = config.evaluation.deterministic
        if seed is None:
            if config.seed is None:
                raise ConfigError("config.yaml has no seed; accepted: the one that the run drew, or --seed", key="seed")
            seed = evaluation_seed(config.seed)
        return cls(n_episodes, deterministic, seed, n_envs, film_episodes)

    def in_words(self, actions: str | None = None) -> str:
        """Say how many episodes are played, how and with which seed.

        Args:
            actions: which ones are taken; None: what `actions_in_words` says.
        """
        length = f"{counted(self.n_episodes, 'episode')} in {counted(self.n_envs, 'env')}"
        return f"{length}, {actions or actions_in_words(self.deterministic)}, seed {self.seed}"


def actions_in_words(deterministic: Deterministic | None) -> str:
    """Say which actions are taken; None: those of each run's setting."""
    if isinstance(deterministic, Mapping):
        sampling = ", ".join(policy_id for policy_id, likeliest in deterministic.items() if not likeliest)
        return f"sampled actions of {sampling or 'no policy'}, the most likely ones of all others"
    return {True: "the most likely actions", False: "sampled actions", None: "actions by each run's setting"}[
        deterministic
    ]


def evaluation_seed(run_seed: int) -> int:
    """Return a seed in [0, 2**31) for evaluations of a run. It gives other episodes than those of its training."""
    return seed_of(np.random.SeedSequence(run_seed))
