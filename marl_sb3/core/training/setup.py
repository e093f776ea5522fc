"""The setup of a training: its policies, their agents, their learners and its runner; and its parts in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_sb3.core.acting.by_agent import PolicyBundle, PolicySpaces
from marl_sb3.core.config.algorithms import policy_files
from marl_sb3.core.learners.building import is_off_policy, processing_of
from marl_sb3.core.learners.learner import LOCAL_EXPERIENCE, Learner, LearnerOptions, iteration_steps
from marl_sb3.core.learners.spec import FITTING, PolicySpec, policy_specs, specs_of_checkpoint
from marl_sb3.core.mapping import (
    Deterministic,
    PolicyMapping,
    by_policy,
    policies_that_train,
    policy_mapping,
    read_deterministic,
    read_mapping,
    resolve_policies,
    rows_of_policy,
)
from marl_sb3.core.metrics.episodes import EpisodeTracker, info_metrics
from marl_sb3.core.sb3.private import progress_remaining, set_progress_remaining
from marl_sb3.core.sb3.schedules import Progress
from marl_sb3.core.sb3.tensors import optimizer_forms, weight_forms
from marl_sb3.core.state.checkpoint import (
    Arrays,
    Checkpoint,
    OfPolicy,
    by_file,
    find_files,
    require_storable,
    space_to_plain,
)
from marl_sb3.core.state.fields import Part, in_order
from marl_sb3.core.state.randomness import ProcessRandomness
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.training.callback import CallbackStates
from marl_sb3.core.training.loop import Counters
from marl_sb3.core.training.runner import ActingPart, LocalRunner, Runner
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv, goal_rewards_of
from marl_sb3.core.vec_env.seeding import derived_seed
from marl_sb3.doors import ASSIGNED_RUNNERS, EACH_EPISODE, Assignment, ExperienceMaker, imported
from marl_sb3.errors import CheckpointError, ConfigError, refuse, shown
from marl_sb3.types import AgentID, PolicyID, PolicyMappingFn


@dataclass(frozen=True)
class Setup:
    """The setup of a training."""

    env: MultiAgentVecEnv
    n_steps: int  # env steps of each env in an iteration
    # Env steps in a rollout of the policies that do not set them; None: SB3's default.
    rollout_steps: int | None
    specs: Mapping[PolicyID, PolicySpec]  # policy id -> spec
    learners: Mapping[PolicyID, Learner]  # policy id -> learner
    bundle: PolicyBundle  # the policies, ready to act
    mapping: PolicyMapping  # which of them play which agents
    update_path: str  # see `marl_sb3.PPO`
    n_threads: int  # threads of one operation of PyTorch or BLAS

    def to_plain(self, evaluation_deterministic: Deterministic) -> State:
        """Return the setup as plain data for a checkpoint."""
        others = {agent: list(policy_ids[1:]) for agent, policy_ids in self.mapping.varied.items()}
        return {
            **({"candidates": others} if others else {}),
            "num_envs": self.env.num_envs,
            "n_steps": self.n_steps,
            "evaluation_deterministic": evaluation_deterministic,
            "policy_of": dict(self.bundle.policy_of),
            "trained": [policy_id for policy_id, learner in self.learners.items() if learner.trained],
            "spaces": {
                policy_id: {"observation": space_to_plain(its.observation), "action": space_to_plain(its.action)}
                for policy_id, its in self.bundle.spaces.items()
            },
            "specs": {policy_id: spec.to_plain() for policy_id, spec in self.specs.items()},
        }

    def require_same(self, state: StateReader) -> None:
        """Refuse a checkpoint with other agents, other policies or another `n_steps`.

        Raises:
            CheckpointError: the message says what differs.
        """
        policy_of = state.fields("policy_of")
        policy_of.require_names(list(self.bundle.policy_of))
        for agent, policy_id in self.bundle.policy_of.items():
            _require_same(f"the policy of agent {agent!r}", policy_id, policy_of.string(agent))
        candidates = read_mapping(state, list(self.specs)).candidates
        _require_same("the candidates of agents", self.mapping.candidates, candidates)
        _require_same("n_steps", self.n_steps, state.integer("n_steps"))
        own = [policy_id for policy_id, learner in self.learners.items() if learner.trained]
        _require_same("policies_to_train", own, state.strings("trained"))


def _require_same(name: str, given: Any, saved: Any) -> None:
    if given != saved:
        raise CheckpointError(f"{name}: {shown(given)} given, the checkpoint has {shown(saved)}")


def set_up(
    env: MultiAgentVecEnv,
    policies: str | Mapping[PolicyID, PolicySpec],
    policy_mapping_fn: Assignment | PolicyMappingFn | Mapping[AgentID, PolicyID] | None,
    policies_to_train: Sequence[PolicyID] | Callable[[PolicyID], bool] | None,
    hyperparameters: Mapping[str, Any],
    *,
    n_steps: int | None,
    seed: int | None,
    device: str,
    update_path: str,
    n_threads: int,
    evaluation_deterministic: Deterministic,
    progress_remaining: Callable[[], Progress],
    experience: ExperienceMaker,
) -> Setup:
    """Make the policies and their learners; most arguments are those of `MultiAgentAlgorithm`.

    Args:
        progress_remaining: from 1 at the start of training to 0 at its end, for schedules.
        experience: that of the `Execution` of the envs.

    Raises:
        ConfigError: an argument is wrong, or a policy could not be saved.
    """
    policy_ids = resolve_policies(dict.fromkeys(policies) if isinstance(policies, Mapping) else policies, env.agents)
    mapping = policy_mapping(policy_ids, env, policy_mapping_fn, seed)
    specs = dict(policy_specs(policies, policy_ids, hyperparameters, env.num_envs))
    by_policy(evaluation_deterministic, policy_ids)  # refuses policies that do not exist
    trained = policies_that_train(policies_to_train, policy_ids)
    rows = {}
    for policy_id in policy_ids:
        spec = specs[policy_id]
        team = mapping.team_of(policy_id) if spec.processing.team_reward else ()
        rows[policy_id] = rows_of_policy(env, policy_id, mapping.seats_of(policy_id), team)
        observed = processing_of(rows[policy_id], spec.processing).observation_space
        network = spec.hyperparameters.get("policy_kwargs")
        if spec.is_auto and (found := imported(FITTING)(spec.algorithm, observed, network)):
            specs[policy_id] = spec.with_policy(*found)  # which a checkpoint holds
    rollout_steps, with_replay = n_steps, []
    for policy_id, spec in specs.items():  # the `n_steps` of off-policy algorithms is that of n-step returns
        if not is_off_policy(spec.algorithm):
            rollout_steps = spec.hyperparameters.get("n_steps") if rollout_steps is None else rollout_steps
        elif policy_id in trained:
            with_replay.append((rows[policy_id], spec))
    if with_replay:
        from marl_sb3.core.off_policy.off_policy import require_memory

        require_memory(with_replay)
    learners: dict[PolicyID, Learner] = {}
    goal_rewards = goal_rewards_of(env)
    options = LearnerOptions(device, rollout_steps, update_path, progress_remaining, experience, goal_rewards)
    for index, policy_id in enumerate(policy_ids):
        # As in SB3, the first policy has the run's seed; the others have other seeds, so that weights differ.
        own_seed = seed if seed is None or index == 0 else derived_seed(seed, index)
        make = specs[policy_id].info.learner_class.make
        try:
            learner = make(rows[policy_id], specs[policy_id], policy_id in trained, own_seed, options)
            require_storable("its weights", weight_forms(learner.algorithm))
            require_storable("its optimizer", optimizer_forms(learner.algorithm))
            for files in policy_files():
                files.require_writable(learner.algorithm)
        except ConfigError as error:
            error.policy_id = policy_id
            raise
        except CheckpointError as error:
            raise ConfigError(f"policy {policy_id!r} could not be saved: {error}", key="policies") from error
        learners[policy_id] = learner
    spaces = {name: PolicySpaces(its.group.observation_space, its.group.action_space) for name, its in rows.items()}
    policies_made = {policy_id: learner.algorithm for policy_id, learner in learners.items()}
    processing = {policy_id: learner.processing for policy_id, learner in learners.items()}
    bundle = PolicyBundle(policies_made, mapping.policy_of, spaces, processing, candidates=mapping.varied)
    n_steps = iteration_steps(list(learners.values()), n_steps)
    return Setup(env, n_steps, rollout_steps, specs, learners, bundle, mapping, update_path, n_threads)


# --- Checkpoints -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingParts:
    """All parts with a state, which a resumed training needs besides its `Setup`."""

    learners: Mapping[PolicyID, Learner]
    runner: Runner
    tracker: EpisodeTracker
    counters: Counters
    callbacks: CallbackStates = field(default_factory=CallbackStates)
    randomness: ProcessRandomness = field(default_factory=ProcessRandomness)

    def by_name(self) -> dict[str, Part]:
        """Return the parts without tensors, by their names in a checkpoint."""
        return {
            "env": self.runner,
            "tracker": self.tracker,
            "counters": self.counters,
            "callbacks": self.callbacks,
            "random": self.randomness,
        }

    def get_state(self) -> State:
        """Return the whole state except for the tensors of learners."""
        return {
            "policies": {policy_id: learner.get_state() for policy_id, learner in self.learners.items()},
            **{name: part.get_state() for name, part in self.by_name().items()},
        }

    def get_tensors(self) -> dict[str, Arrays]:
        """Return the tensors of learners by file name."""
        return by_file(learner.get_tensors() for learner in self.learners.values())

    def restore(self, checkpoint: Checkpoint, seed: int | None) -> dict[int, str]:
        """Restore all parts from a checkpoint. If a part does not accept its state, nothing is changed.

        Args:
            checkpoint: that of a training with the same `Setup`.
            seed: the run seed, for envs that begin new episodes.

        Returns:
            Env index -> reason, for every env that could not be restored exactly; it has begun its next episode.

        Raises:
            CheckpointError: the checkpoint does not fit the training.
        """
        state = StateReader(checkpoint.state)
        state.num_envs = state.integer("num_envs", 1)
        put_envs, policies = self.runner.read_state(state.fields("env")), state.fields("policies")
        setters: list[Callable[[], object]] = [
            self.learners[policy_id].read_state(policies.fields(policy_id, files))
            for policy_id, files in self.files_of(checkpoint).items()
        ]
        for name, each in self.by_name().items():  # `random` last: no numbers may be drawn afterwards
            if each is not self.runner:
                setters.append(each.read_state(state.fields(name)))
        lost = dict(put_envs())  # first: a user's env may refuse its saved state
        *put_others, put_random = setters
        in_order(put_others)()
        for learner in self.learners.values():  # without the env steps, a zip could not have the values of schedules
            left = Progress(progress_remaining(learner.algorithm), self.counters.env_steps)
            set_progress_remaining(learner.algorithm, left)
        # Other episodes begin than those of the first rollout.
        self.runner.restart_lost(lost, None if seed is None else derived_seed(seed, self.counters.env_steps))
        put_random()
        return lost

    def files_of(self, checkpoint: Checkpoint) -> dict[PolicyID, OfPolicy]:
        """Return the files of each policy in a checkpoint of the same policies."""
        StateReader(checkpoint.state).fields("policies").require_names(list(self.learners))
        found = find_files(checkpoint.tensors, checkpoint.name, len(self.learners))
        return dict(zip(self.learners, found, strict=True))


_MOST_THREADS = 1024  # that a checkpoint, which is untrusted, may ask for


def constructor_arguments(
    checkpoint: Checkpoint,
    policies: Mapping[PolicyID, PolicySpec] | None,
    settings: Mapping[str, Any],
    hyperparameters: Mapping[str, Any],
    num_envs: int,
) -> dict[str, Any]:
    """Return the arguments of the constructor for the algorithm in a checkpoint.

    Args:
        checkpoint: the checkpoint, which is untrusted. What the caller gives takes the place of what it holds.
        policies: specs from the caller; None: those in the checkpoint.
        settings: other arguments of the constructor.

    Raises:
        CheckpointError: the specs in the checkpoint are missing or not valid, or the caller gives what cannot change.
        ConfigError: a policy was made of classes or functions, and `policies` is None; or an `Assignment` has varied
            who plays, and there is none.
    """
    state = StateReader(checkpoint.state)
    if "candidates" in state and "policy_mapping_fn" not in settings:
        words = "an Assignment has chosen the policies of episodes, which a checkpoint does not hold"
        raise ConfigError(f"{checkpoint.name}: {words}: pass `policy_mapping_fn`", key="policies")
    policy_of, n_steps = state.fields("policy_of"), state.integer("n_steps", 1)
    saved_ids = state.fields("policies").names()
    read: dict[str, Any] = {"n_steps": n_steps}
    if "arguments" in state:  # older checkpoints have none
        saved = state.fields("arguments")
        read = {name: saved.value(name) for name in ("n_steps", "seed", "update_path", "stats_window_size")}
        if read["n_steps"] is None and state.integer("num_envs", 1) != num_envs:
            read["n_steps"] = n_steps  # by default, an iteration is as long as the number of envs says
        read["n_threads"] = saved.integer("n_threads", 1, _MOST_THREADS)
        read["custom_metrics"] = info_metrics(saved.fields("custom_metrics").values(), saved.where)
    given = {name: value for name, value in settings.items() if name not in ("n_steps", "seed") or value is not None}
    if "n_steps" in given:
        _require_same("n_steps", given.pop("n_steps"), n_steps)
    if None not in (given.get("seed"), read.get("seed")) and state.integer("num_envs", 1) == num_envs:
        _require_same("seed", given["seed"], read["seed"])  # the checkpoint has all random states
    if isinstance(policies, str):
        refuse("policies", policies, "a PolicySpec by policy id; None: those of the checkpoint")
    if isinstance(policies, Mapping):  # their files are numbered
        policies = {each: policies[each] for each in (*saved_ids, *policies) if each in policies}
    specs = policies or policy_specs(specs_of_checkpoint(checkpoint), (), hyperparameters, num_envs, override=True)
    return {
        **read,
        "policies": specs,
        "policy_mapping_fn": {agent: policy_of.string(agent) for agent in policy_of.names()},
        "policies_to_train": state.strings("trained"),
        "evaluation_deterministic": read_deterministic(state, "evaluation_deterministic", saved_ids),
        **given,
        **(hyperparameters if policies else {}),
    }


# --- The runner ------------------------------------------------------------------------------------------------------


class InThisProcess:
    """The `Execution` of vec envs that this process steps."""

    experience = LOCAL_EXPERIENCE

    def make_runner(self, setup: Setup, tracker: EpisodeTracker, progress_after: Callable[[int], Progress]) -> Runner:
        """See `Execution.make_runner`."""
        return local_runner(setup.mapping, setup.env, setup.learners, tracker)


def local_runner(
    mapping: PolicyMapping,
    env: MultiAgentVecEnv,
    policies: Mapping[PolicyID, ActingPart],
    tracker: EpisodeTracker,
    *,
    warns: bool = True,
    first_env: int = 0,
) -> LocalRunner:
    """Make a `LocalRunner`; one from the door `ASSIGNED_RUNNERS` if there is an `Assignment`.

    Args:
        first_env: index of the first env among those of all shards.
    """
    if mapping.assignment is None:
        return LocalRunner(env, policies, tracker, warns=warns)
    make = ASSIGNED_RUNNERS[getattr(mapping.assignment, "runner", EACH_EPISODE)]
    return make(mapping, env, policies, tracker, warns=warns, first_env=first_env)


IN_THIS_PROCESS = InThisProcess()
