"""Build envs and policies from a configuration; errors name the file or option of the wrong setting."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any, NoReturn

import torch

from marl_sb3.core.config.algorithms import AUTO, algorithm_info
from marl_sb3.core.config.values import counted
from marl_sb3.core.envs.registry import EnvFactory, env_factory
from marl_sb3.core.learners.building import is_off_policy
from marl_sb3.core.learners.learner import parallel_updates
from marl_sb3.core.learners.spec import PolicySpec, hyperparameter_defaults, named_algorithm, resolve_hyperparameters
from marl_sb3.core.mapping import SHARED, PolicyMapping, policy_mapping, policy_of_agents, resolve_policies
from marl_sb3.core.metrics.episodes import info_metrics
from marl_sb3.core.state.randomness import preserve_rng
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.make import make_vec_env
from marl_sb3.core.vec_env.seeding import fresh_seed
from marl_sb3.doors import Assignment
from marl_sb3.envs.finding import attribute_from_here
from marl_sb3.envs.gymnasium_wrappers import named_wrappers, wrapping_factory
from marl_sb3.errors import ConfigError, require_known, shown
from marl_sb3.extensions.assignment import SampledAssignment, SwappedAssignment
from marl_sb3.extensions.dialects.names import no_policy
from marl_sb3.extensions.remote.ray import AnyRunners
from marl_sb3.league.league import League
from marl_sb3.runs.files import Hparams, entry_of
from marl_sb3.runs.folder import undone_on_error
from marl_sb3.runs.schema import ACCEPTED, BY_POLICY, SECTIONS, SWAP, PolicySettings, TrainConfig, names_in, source_of
from marl_sb3.startup import start_without_dynamo
from marl_sb3.types import AgentID, PolicyID


def import_algorithms(hparams: Hparams, env: str | None) -> None:
    """Import the algorithms that a settings file names, which the user trusts; the arguments are those of `entry_of`.

    Raises:
        ConfigError: see `entry_of` and `named_algorithm`.
    """
    entry = entry_of(hparams, env, [])[2]
    by_policy = [each for name in BY_POLICY if isinstance(each := entry.get(name), Mapping)]
    for settings in [entry, *(own for each in by_policy for own in each.values())]:
        if isinstance(settings, Mapping) and isinstance(algo := settings.get("algo"), str):
            named_algorithm(algo)


def env_of(
    config: TrainConfig, factory: EnvFactory | None = None, n_envs: int | None = None
) -> tuple[str | EnvFactory, dict[str, Any]]:
    """Return what `make_vec_env` makes envs like those of a run of, in the wrappers that are set; and its arguments.

    Args:
        factory: makes the env, if the id in the configuration is only its name.
        n_envs: number of envs; there are no more workers than envs. None: as in the run.

    Raises:
        ConfigError: `env_wrapper` names a wrapper that is not in the table, there is no such env, or an argument of the
            env has the name of an argument of `make_vec_env`.
    """
    made_of, wrappers = factory or config.env, named_wrappers(config.env_wrapper, config.reward_weights)
    settings = dict(zip(_OF_ENVS, attrgetter(*_OF_ENVS)(config), strict=True))
    if n_envs is not None and n_envs < config.n_envs and isinstance(config.n_workers, int):
        settings["n_workers"] = min(config.n_workers, n_envs)
    for name in filter(config.env_kwargs.__contains__, _OF_ENVS):
        words = "the argument of the env has the name of a setting; accepted: other names, as a factory around the env"
        raise ConfigError(f"env.{name}: {words} can give it", key=f"env.{name}")
    return wrapping_factory(env_factory(made_of), wrappers) if wrappers else made_of, {**settings, **config.env_kwargs}


_OF_ENVS = ("episode_horizon", "env_state", "n_workers", "worker_timeout_s", "max_worker_restarts")


def make_envs(
    config: TrainConfig, factory: EnvFactory | None = None, n_envs: int | None = None, seed: int | None = None
) -> MultiAgentVecEnv:
    """Make envs like those of a run; the caller closes them.

    Args:
        factory: makes the env, if the id in the configuration is only its name.
        n_envs: number of envs; None: as in the run.
        seed: run seed of the envs; None draws one.
    """
    number = config.n_envs if n_envs is None else n_envs
    made_of, settings = env_of(config, factory, number)
    return make_vec_env(made_of, number, seed, config.vectorizer, **settings)


def set_up_process(device: str, n_threads: int) -> None:
    """Check the device, set the number of PyTorch's threads, and avoid imports that a training run does not need."""
    check_device(device)
    torch.set_num_threads(n_threads)
    start_without_dynamo()


def build(
    config: TrainConfig, factory: EnvFactory | None, runners: AnyRunners | None = None
) -> tuple[TrainConfig, MultiAgentAlgorithm]:
    """Make the envs, and the algorithm that trains in them.

    Args:
        config: from `resolved`, or of a run folder.
        factory: makes the env if the id in the configuration is only its name; None: the id finds it.
        runners: which processes roll out the shards; None: this one.

    Returns:
        The configuration `with_rollouts`, and the algorithm.

    Raises:
        ConfigError: a setting does not fit.
    """
    with source_named(config.where):
        try:
            made_of, settings = env_of(config, factory)
            if config.n_shards or runners is not None:
                from marl_sb3.extensions.remote.sharded_vec_env import make_sharded_vec_env

                numbers = config.n_envs, config.n_shards, config.seed
                env: MultiAgentVecEnv = make_sharded_vec_env(
                    made_of, *numbers, config.vectorizer, runners=runners, **settings
                )
            else:
                env = make_vec_env(made_of, config.n_envs, config.seed, config.vectorizer, **settings)
            with undone_on_error(env.close):
                config = with_rollouts(config, env)
                algorithm = _build_algorithm(config, env)
                _require_masks(config, factory, algorithm)
                return with_policies(config, algorithm.specs), algorithm
        except MemoryError as error:
            words = f"{counted(config.n_envs, 'env')} and these settings need more memory than there is: {error}"
            raise ConfigError(words, key="n_envs") from error
        except OverflowError as error:
            raise ConfigError(f"a setting is too large: {error}") from error


def _require_masks(config: TrainConfig, factory: EnvFactory | None, algorithm: MultiAgentAlgorithm) -> None:
    """Refuse an env without action masks for a policy that needs them, before there is a run folder."""
    masked = [each.actor for each in algorithm.parts.learners.values() if each.actor.policy.takes_masks]
    if not masked:
        return
    with preserve_rng():
        probe = make_envs(config, factory, seed=config.seed)
        try:
            step = probe.reset()
        finally:
            probe.close()
    for actor in masked:
        actor.masks(step)


@contextmanager
def source_named(where: Callable[[str | None], str], key: str | None = None) -> Iterator[None]:
    """Put the file or option of the wrong setting before the message of a `ConfigError`, once.

    Args:
        where: `TrainConfig.where` of the configuration.
        key: the setting; None: that of the error.
    """
    try:
        yield
    except ConfigError as error:
        source = where(key or error.path)
        if str(error).startswith(source):
            raise
        raise ConfigError(f"{source}{error}", key=error.key) from error


def resolved(config: TrainConfig) -> TrainConfig:
    """Return the configuration with a seed and all defaults of SB3, so that the run can be repeated with another SB3.

    The hyperparameters of the run are those of its algorithm. A policy with another one has that algorithm's defaults
    and its own settings.
    """
    seed = fresh_seed() if config.seed is None else config.seed
    at_once = config.n_parallel_updates or parallel_updates(config.n_threads)
    settings, checkpoints = dict(config.policy_settings), config.checkpoints
    # A given value is kept as it was written: `lin_3e-4` can be written to a file, the function made of it cannot.
    with source_named(config.where, "algo"):
        of_run = {**hyperparameter_defaults(algorithm_info(config.algo).algorithm_class), **config.hyperparameters}
    for policy_id, own in config.own_settings.items():
        if own.get("algo", config.algo) != config.algo:
            with source_named(config.where, f"{policy_id}.algo"):
                defaults = hyperparameter_defaults(algorithm_info(own["algo"]).algorithm_class)
            settings[policy_id] = {**defaults, **own, **config.policy_settings.get(policy_id, {})}  # with its agents
    is_one = config.policies == SHARED or (not isinstance(config.policies, str) and len(config.policies) == 1)
    if config.league.rates(is_one) and source_of(config.sources, "checkpoints.metric") is None:
        checkpoints = replace(checkpoints, metric="league/rating_mean")  # a sum of returns says little of opponents
    config = replace(config, checkpoints=checkpoints)
    return replace(config, seed=seed, n_parallel_updates=at_once, policy_settings=settings, hyperparameters=of_run)


_MOST_SHARDS = 64  # if the run does not set them: enough for many runners, and few enough to act for many envs at once


def with_shards(config: TrainConfig) -> TrainConfig:
    """Return the configuration of a run with runners: without a given number of shards, one that no runner changes."""
    if config.n_shards:
        return config
    return replace(config, n_shards=max(n for n in range(1, _MOST_SHARDS + 1) if config.n_envs % n == 0))


_ROLLOUT = 2048  # agent steps of a policy over all envs: SB3's rollout of one env
_SHORTEST_ROLLOUT = 16  # steps of an env: shorter ones say little of what an action leads to


def with_rollouts(config: TrainConfig, env: MultiAgentVecEnv) -> TrainConfig:
    """Shorten the rollouts whose length no source gives, if the configuration picks them.

    SB3's default of 2,048 steps in each of several envs makes so few updates that short training runs learn nothing.

    Args:
        config: from `resolved`.
        env: the envs.

    Returns:
        The configuration with the lengths; it picks none if no rollout was shortened.
    """
    if not config.picks_rollouts:
        return config
    policy_ids = resolve_policies(config.policies, env.agents)
    mapping = _mapping(config.mapping, config.policies, config.agents, policy_ids, env)
    policies = list(policy_mapping(policy_ids, env, mapping).policy_of.values())
    of_run: dict[str, Any] = {}
    of_policies: dict[PolicyID, Any] = {}
    for policy_id in policy_ids:
        steps = _picked_steps(config, policy_id, policies.count(policy_id) or 1)
        if steps is None:
            continue
        has_algo_of_run = config.of_policy(policy_id).algo == config.algo
        if not has_algo_of_run or of_run.setdefault("n_steps", steps) != steps:
            of_policies[policy_id] = {**config.policy_settings.get(policy_id, {}), "n_steps": steps}
    return replace(
        config,
        hyperparameters={**config.hyperparameters, **of_run},
        policy_settings={**config.policy_settings, **of_policies},
        picks_rollouts=bool(of_run or of_policies),
    )


def with_policies(config: TrainConfig, specs: Mapping[PolicyID, PolicySpec]) -> TrainConfig:
    """Return the configuration with the policies that were chosen for `policy: auto`; `specs` have them."""
    chosen: dict[PolicyID, dict[str, Any]] = {}
    for policy_id, spec in specs.items():
        plain: Any = spec.to_plain()
        if plain and policy_id not in (config.league.exploiters or ()) and config.of_policy(policy_id).policy == AUTO:
            name = re.sub("^(Mlp|Cnn|MultiInput).*", r"\1Policy", plain["policy"])  # also of other algorithms
            chosen[policy_id] = {"policy": name, "policy_kwargs": plain["hyperparameters"].get("policy_kwargs")}
    if config.policy == AUTO:
        config = replace(config, policy=next((own["policy"] for own in chosen.values()), "MlpPolicy"))
    settings = dict(config.policy_settings)
    for policy_id, own in chosen.items():
        has = {**config.of_policy(policy_id).hyperparameters, "policy": config.of_policy(policy_id).policy}
        if others := {name: value for name, value in own.items() if value != has.get(name)}:
            settings[policy_id] = {**settings.get(policy_id, {}), **others}
    return replace(config, policy_settings=settings)


def rollout_lengths(config: TrainConfig) -> list[int]:
    """Return the different lengths of the rollouts in a resolved configuration, in steps of an env."""
    of_policies = map(config.of_policy, config.own_settings)
    used = [PolicySettings(config.algo, config.policy, config.hyperparameters), *of_policies]
    return sorted({each.hyperparameters["n_steps"] for each in used if not _has_replay(each.algo)})


def _has_replay(algo: str) -> bool:
    return is_off_policy(algorithm_info(algo).algorithm_class)


def _picked_steps(config: TrainConfig, policy_id: PolicyID, n_agents: int) -> int | None:
    """Return the length of a policy's rollouts in steps of an env; None if it stays as it is.

    It is the power of two that is nearest to 2,048 agent steps over all envs, or a few more for whole minibatches.
    """
    settings, rows = config.of_policy(policy_id), config.n_envs * n_agents
    is_set = source_of(config.sources, f"{policy_id}.n_steps") is not None
    if is_set or _has_replay(settings.algo) or settings.hyperparameters["n_steps"] * rows <= _ROLLOUT:
        return None
    steps: int = max(_SHORTEST_ROLLOUT, 2 ** round(math.log2(max(1.0, _ROLLOUT / rows))))
    batch_size: int = settings.hyperparameters.get("batch_size", 1)
    whole = batch_size // math.gcd(batch_size, rows)
    return -(-steps // whole) * whole


def check_device(device: str) -> None:
    """Refuse devices that PyTorch does not have: SB3 would silently take the CPU instead of CUDA."""
    kind, _, index = device.partition(":")
    if not re.fullmatch(r"auto|cpu(:0)?|cuda(:[0-9]+)?", device):
        fault = "; accepted: auto, cpu, cuda or cuda:N"
    elif kind == "cuda" and not torch.cuda.is_available():
        fault = ", but torch finds no CUDA"
    elif kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        fault = f"; accepted: cuda:0 to cuda:{torch.cuda.device_count() - 1}"
    else:
        return
    raise ConfigError(f"device is {device!r}{fault}", key="device")


def _build_algorithm(config: TrainConfig, env: MultiAgentVecEnv) -> MultiAgentAlgorithm:
    policy_ids = resolve_policies(config.policies, env.agents)
    for policy_id, settings in config.policy_settings.items():
        if policy_id not in policy_ids:
            _refuse_unknown(policy_id, settings, policy_ids, env)
    _require_unambiguous([source.path for source in config.sources.values()], policy_ids)
    mapping = _mapping(config.mapping, config.policies, config.agents, policy_ids, env)
    if config.league.is_on:
        mapping = _league(config, policy_mapping(policy_ids, env, mapping))
    specs = {}
    for policy_id in [*policy_ids, *(mapping.exploiters if config.league.is_on else ())]:
        specs[policy_id] = policy_spec(config, policy_id, policy_ids)
    return MultiAgentAlgorithm(
        env,
        policies=specs,
        policy_mapping_fn=mapping,
        policies_to_train=config.policies_to_train,
        seed=config.seed,
        device=config.device,
        update_path=config.update_path,
        n_threads=config.n_threads,
        n_parallel_updates=config.n_parallel_updates,
        stats_window_size=config.stats_window_size,
        evaluation_deterministic=config.evaluation.deterministic,
        custom_metrics=info_metrics(config.custom_metrics, "custom_metrics"),
    )


def _refuse_unknown(
    policy_id: PolicyID, settings: Mapping[str, Any], policy_ids: Sequence[PolicyID], env: MultiAgentVecEnv
) -> NoReturn:
    """Refuse settings of a policy that does not exist.

    A misspelt setting of a section, such as `evaluation.intervall`, looks like a setting of a policy `evaluation`.
    """
    for name in settings if policy_id in SECTIONS else ():
        require_known(name, names_in(policy_id), f"{name!r} in {policy_id} is unknown", f"{policy_id}.{name}")
    if words := no_policy(policy_id, settings):
        raise ConfigError(words, key=policy_id)
    hint = "; with policies per_agent each agent has its own" if policy_id in env.agents else ""
    close = difflib.get_close_matches(policy_id, [*SECTIONS, "env", "policy_kwargs"], n=1)
    hint = f"; or did you mean {close[0]}.{next(iter(settings))}?" if close and settings else hint
    raise ConfigError(f"unknown policy {policy_id!r}; accepted: {', '.join(policy_ids)}{hint}", key=policy_id)


def _require_unambiguous(keys: Iterable[str], policy_ids: Sequence[PolicyID]) -> None:
    """Refuse dotted keys with two meanings, such as `env.height` if there is a policy called `env`."""
    for key in keys:
        meanings = [meaning for prefix, meaning in _PREFIXES.items() if key.startswith(prefix)]
        meanings += [f"a setting of {key.partition('.')[0]}"] if key in ACCEPTED and "." in key else []
        for policy_id in policy_ids:
            name = key.removeprefix(f"{policy_id}.")
            if name != key and ("." not in name or name.startswith("policy_kwargs.")):
                meanings.append(f"{name} of policy {policy_id!r}")
        if len(meanings) > 1:
            accepted = "--set env_kwargs={...}, policy_kwargs={...} or policy_settings={POLICY: {...}}"
            raise ConfigError(f"it may mean {' or '.join(meanings)}; accepted: {accepted}", key=key)


_PREFIXES = {
    "env.": "an argument of the env",
    "policy_kwargs.": "a part of policy_kwargs",
    "model.": "a part of RLlib's model",
    "stop.": "a stop condition",
    "hyperparameters.": "a hyperparameter of all policies",
}


def policy_spec(config: TrainConfig, policy_id: PolicyID, policy_ids: Sequence[PolicyID] = ()) -> PolicySpec:
    """Make the specification of one policy of a run; that of an exploiter is that of the policy that it plays like.

    Args:
        policy_ids: all policies of the run.
    """
    exploiters = config.league.exploiters or {}
    if policy_id in exploiters:
        policy_id = config.league.plays_like(policy_id, [each for each in policy_ids if each not in exploiters])
    settings = config.of_policy(policy_id)
    info = algorithm_info(settings.algo)
    # As arguments of PolicySpec, these names would have another meaning.
    arguments = {name: value for name, value in settings.hyperparameters.items() if name in ("self", "algorithm")}
    try:
        resolve_hyperparameters(info.algorithm_class, arguments)
        return PolicySpec(info, settings.policy, **settings.hyperparameters)
    except ConfigError as error:
        if str(error.key).partition(".")[0] not in config.own_settings.get(policy_id, ()):
            raise
        raise ConfigError(f"policy {policy_id!r}: {error}", key=f"{policy_id}.{error.key}") from error


def _mapping(given: Any, policies: Any, agents: Any, policy_ids: Sequence[PolicyID], env: MultiAgentVecEnv) -> Any:
    """Return what `MultiAgentAlgorithm` takes as `policy_mapping_fn`; the first three are settings, or made of them.

    Raises:
        ConfigError: the setting `mapping`, or the agents of policies, do not fit the policies or the env.
    """
    listed = _policy_of_listed({each: agents[each] for each in policy_ids if each in agents}) or None
    if given is None:
        return listed
    mapping: Any
    try:
        if given == SWAP:
            mapping = _swapped(policy_of_agents(policy_ids, env.agents, listed), env)
        elif isinstance(given, Mapping):
            if twice := [agent for agent in given if agent in (listed or ())]:
                words = f"agent {twice[0]!r} is in mapping, and in the agents of policy {(listed or {})[twice[0]]!r}"
                raise ConfigError(f"{words}; accepted: one of them")
            others = policy_of_agents(policy_ids, env.agents, None) if isinstance(policies, str) else listed
            mapping = SampledAssignment({**(others or {}), **given})
        else:
            mapping = _named_mapping(given)
            if listed:
                words = f"mapping is {shown(given)}, and policy {next(iter(listed.values()))!r} has agents"
                raise ConfigError(f"{words}; accepted: one of them")
        policy_mapping(policy_ids, env, mapping)
    except ConfigError as error:
        raise ConfigError(str(error), key="mapping") from error
    return mapping


def _swapped(policy_of: Mapping[AgentID, PolicyID], env: MultiAgentVecEnv) -> Assignment:
    """Return the swaps of agents with the same spaces; refused if none of them have different policies."""
    if all(len({policy_of[agent] for agent in group.agents}) == 1 for group in env.groups):
        seats = "; ".join(
            f"{', '.join(group.agents)}: policy {policy_of[group.agents[0]]!r}, {group.observation_space}, "
            f"{group.action_space}"
            for group in env.groups
        )
        words = "mapping is swap, and no agents with the same spaces have different policies"
        raise ConfigError(f"{words}: {seats}; accepted: policies per_agent, or several for such agents")
    return SwappedAssignment(policy_of, [group.agents for group in env.groups])


def _named_mapping(name: str) -> Any:
    """Import a function, or an `Assignment`, that the user has named; nothing else may name it."""
    where = f"mapping {shown(name)}"
    found = attribute_from_here(name, where, "swap, or MODULE:NAME of a function or an Assignment", "mapping")
    if isinstance(found, type) or not (callable(found) or isinstance(found, Assignment)):
        module_name, _, attribute = name.partition(":")
        raise ConfigError(f"{where}: {module_name} has no function and no Assignment {attribute!r}", key="mapping")
    return found


def _policy_of_listed(agents: Mapping[PolicyID, Sequence[AgentID]]) -> dict[AgentID, PolicyID]:
    """Return the policy of each agent, from the `agents` of the policies."""
    mapping: dict[AgentID, PolicyID] = {}
    for agent, policy_id in [(each, policy_id) for policy_id, own in agents.items() for each in own]:
        if agent in mapping:
            raise ConfigError(f"agent {agent!r} is in policies {mapping[agent]!r} and {policy_id!r}", key="policies")
        mapping[agent] = policy_id
    return mapping


def _league(config: TrainConfig, mapping: PolicyMapping) -> League:
    """Make the league of a run, given the policies that may play each agent."""
    if config.policies_to_train is not None:
        words = "all policies of a league learn; accepted: null, and opponents that do not learn in league.opponents"
        raise ConfigError(f"policies_to_train is {config.policies_to_train}: {words}", key="policies_to_train")
    policy_ids = dict.fromkeys(policy_id for own in mapping.candidates.values() for policy_id in own)
    seats = {policy_id: list(mapping.seats_of(policy_id)) for policy_id in policy_ids}
    return League(seats, **{name: getattr(config.league, name) for name in names_in("league")})
