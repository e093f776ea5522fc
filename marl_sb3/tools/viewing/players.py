"""Who plays a match, in which env, and which of its sides each can take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.errors import ConfigError, shown
from marl_sb3.evaluation.opponents import Against, bundle_of, combine_policies, misfit, opponent_name, opponents_of
from marl_sb3.evaluation.played import seat_name
from marl_sb3.extensions.store.checkpoint_format import MANIFEST
from marl_sb3.extensions.store.load import load_policies
from marl_sb3.runs.folder import LEAGUE, members_of, run_around
from marl_sb3.runs.rivals import player_at, require_playable
from marl_sb3.runs.run import SavedRun
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.settings import load_config
from marl_sb3.types import AgentID

Sides: TypeAlias = Mapping[str, tuple[AgentID, ...]]  # by name, in the order of the env's agents


@dataclass(frozen=True)
class Player:
    """One that plays against others."""

    name: str
    source: str  # the path of its run or its files, or MODULE:CLASS
    plays: Against  # policies, or code
    checkpoint: str | None = None  # which its policies were loaded from
    sides: tuple[str, ...] = ()  # those that it can take


# --- The game --------------------------------------------------------------------------------------------------------


def runs_of(paths: Iterable[Path], env: str | None) -> dict[Path, SavedRun]:
    """Return the runs of those paths that are runs, or parts of one: checkpoints, members of its league.

    Args:
        env: what the user has named.

    Raises:
        ConfigError: a path is no run, and no checkpoint.
    """
    runs = {}
    for path in paths:
        around = run_around(path)
        if around is not None or not (path / MANIFEST).exists():  # else it is of an algorithm, without a run
            runs[path] = SavedRun.open(path if around is None else around, env)
    return runs


def game_of(runs: Mapping[Path, SavedRun], env: str | None) -> tuple[TrainConfig, list[str]]:
    """Return the configuration of the first run, in whose env all play, and notes on those of the others.

    Args:
        env: what the user has named.

    Raises:
        ConfigError: the runs have different envs, or there is none, and no env is named.
    """
    if not runs:
        if env is None:
            words = "no player is a run, whose env could be taken; accepted: runs, or --env ENV (env=)"
            raise ConfigError(words, key="env")
        return load_config(env), []
    (first_path, first), *others = ((path, run.config) for path, run in runs.items())
    require_playable(first, f"{first_path}: ")
    notes = []
    for path, config in others:
        if config.env != first.env:
            words = f"{path} was trained in {shown(config.env)}, {first_path} in {shown(first.env)}"
            raise ConfigError(f"{words}; accepted: runs of one env, or --env with one that all can play", key="run")
        names = [*first.env_kwargs, *(name for name in config.env_kwargs if name not in first.env_kwargs)]
        differ = [name for name in names if first.env_kwargs.get(name) != config.env_kwargs.get(name)]
        named = [f"env.{name}" for name in differ]
        named += ["episode_horizon"] if config.episode_horizon != first.episode_horizon else []
        if named:
            words = f"{path} was trained with other values of {', '.join(named)} than those of {first_path}"
            notes.append(f"{words}, which are used")
    return first, notes


def sides_of(bundles: Sequence[PolicyBundle], agents: Sequence[AgentID], asked: Sequence[Sequence[AgentID]]) -> Sides:
    """Return the sides of a game.

    Args:
        bundles: the policies of all players.
        agents: of the env.
        asked: agents that are sides; those that are left are one more. None: the agents that one policy plays in a run
            with several policies, and if the runs differ, with the fewest; where no player has policies for all agents,
            those that one has some for, and the others; else each agent alone.

    Raises:
        ConfigError: there is one side alone, an agent is unknown or in two sides, or runs share agents differently.
    """
    if len(agents) < 2:
        words = f"the env has one agent, {shown(agents[0])}"
        raise ConfigError(f"{words}: there is no opponent; accepted: an env with several agents", key="env")
    if asked:
        listed = [agent for side in asked for agent in side]
        wrong = [agent for agent in listed if agent not in agents or listed.count(agent) > 1]
        left = tuple(agent for agent in agents if agent not in listed)
        sides = [tuple(side) for side in asked if len(side)] + ([left] if left else [])
        if wrong or len(sides) < 2:
            why = f"{shown(wrong[0])} is no agent, or in two sides" if wrong else "there is one side alone"
            words = f"accepted: some of {', '.join(agents)} for each side, and each agent in one of them"
            raise ConfigError(f"--agents: {why}; {words}", key="--agents")
        return {seat_name(side): side for side in sides}
    splits = [split for bundle in bundles if len(split := _by_policy(bundle, agents)) > 1]
    shared = [split for split in splits if "" not in split] or splits
    if not shared:
        return {agent: (agent,) for agent in agents}
    fewest = min(shared, key=len)
    other = next((each for each in shared if len(each) == len(fewest) and {*each.values()} != {*fewest.values()}), None)
    if other is not None:
        one, two = (" against ".join(map(seat_name, split.values())) for split in (fewest, other))
        words = f"the policies of the runs share the agents differently: {one}, and {two}"
        raise ConfigError(f"{words}; accepted: --agents A,B with the agents of one side", key="--agents")
    is_named = {name: len(side) > 1 and name not in ("", *agents) for name, side in fewest.items()}
    return {name if is_named[name] else seat_name(side): side for name, side in fewest.items()}


def _by_policy(bundle: PolicyBundle, agents: Sequence[AgentID]) -> dict[str, tuple[AgentID, ...]]:
    """Return the agents of each policy; those that none plays are together."""
    split: dict[str, list[AgentID]] = {}
    for agent in agents:
        split.setdefault(bundle.policy_of.get(agent, ""), []).append(agent)
    return {policy_id: tuple(own) for policy_id, own in split.items()}


def seated(player: Player, env: MultiAgentVecEnv, sides: Sides) -> tuple[Player, Mapping[str, str]]:
    """Find out which sides a player can take: those whose agents have the spaces that its policies were trained with.

    Returns:
        The player with its sides, and why it cannot take each of the others.

    Raises:
        ConfigError: it can take none of them; or an opponent of code cannot be made.
    """
    bundle = bundle_of(player.plays)
    if bundle is None:
        opponents_of(player.plays, env, env.agents)
        return replace(player, sides=tuple(sides)), {}
    faults = {name: fault for name, side in sides.items() if (fault := misfit(bundle, env, side)) is not None}
    able = tuple(name for name in sides if name not in faults)
    if not able:
        fault = next(iter(faults.values()))
        words = f"{player.name} can play no side of this game: {fault}"
        raise ConfigError(f"{words}; accepted: policies that were trained for the env", key="run")
    if faults:  # its policies are not asked about agents that they do not know
        bundle = combine_policies({agent: bundle for name in able for agent in sides[name]})
    return replace(player, plays=bundle, sides=able), faults


# --- The players -----------------------------------------------------------------------------------------------------


def players_of(
    named: Mapping[str, Any], runs: Mapping[Path, SavedRun], checkpoints: str | None, env: MultiAgentVecEnv
) -> list[Player]:
    """Load the players.

    Args:
        named: by label: paths, runs, policies, or opponents of code.
        runs: those of the paths.
        checkpoints: which of each run; see `match`.
        env: in which they play.

    Raises:
        ConfigError, CheckpointError: there is no such run or checkpoint, or it is damaged.
    """
    found: list[Player] = []
    for label, given in named.items():
        if (bundle := bundle_of(given)) is not None:
            folder = getattr(given, "folder", None)
            found.append(Player(label, label if folder is None else str(folder), bundle, bundle.checkpoint))
        elif isinstance(given, Path):
            found += _from_files(label, given, runs.get(given), checkpoints, env)
        else:
            found.append(Player(label, opponent_name(given), given))
    names = [player.name for player in found]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"player {shown(twice)} is given twice; accepted: different ones", key="run")
    if len(found) < 2:
        words = f"{', '.join(names) or 'no player'} alone: a match needs two players; accepted: more runs, "
        raise ConfigError(f"{words}--opponent random or MODULE:CLASS, or --checkpoints all", key="run")
    return found


def _from_files(
    label: str, path: Path, run: SavedRun | None, checkpoints: str | None, env: MultiAgentVecEnv
) -> Iterator[Player]:
    if run is None:
        bundle = load_policies(path, env=env)
        yield Player(label, str(path), bundle, bundle.checkpoint)
        return
    if run.files.path in path.absolute().parents:  # a checkpoint itself is named
        yield _at(label, run, path, env)
        return
    members = members_of(run.files.path)
    rated = {name: each.rating for name, each in members.items() if each.rating is not None}
    if checkpoints == "best" and rated:  # a sum of returns does not say how good a member is
        name = max(rated, key=rated.__getitem__)
        best = player_at(run, run.files.path / LEAGUE / name, env)
        if best.policy_of.keys() >= {*env.agents}:  # else it needs the others, and their ratings say nothing about it
            yield Player(f"{label}/{name}", str(run.files.shown), best, name)
            return
    which = [checkpoints]
    if checkpoints == "all":
        which = [str(int(name.removeprefix("ckpt-"))) for name in run.files.checkpoints.names()] or [None]
    elif checkpoints is not None:
        which = [*checkpoints.split(",")]
    for each in which:
        bundle = run.policies(each, env)
        name = f"{label}@{int((bundle.checkpoint or '').removeprefix('ckpt-'))}" if len(which) > 1 else label
        yield Player(name, str(run.files.shown), bundle, bundle.checkpoint)
    if checkpoints == "all":
        for name in members:
            yield _at(f"{label}/{name}", run, run.files.path / LEAGUE / name, env)


def _at(label: str, run: SavedRun, folder: Path, env: MultiAgentVecEnv) -> Player:
    return Player(label, str(run.files.shown), player_at(run, folder, env), folder.name)


def labels(paths: Sequence[str | Path], taken: Collection[str]) -> dict[str, Path]:
    """Return paths by label: the last part of each; the whole paths if folders differ or a label is taken."""
    given = [Path(path) for path in paths]
    names = [path.name or str(path) for path in given]
    is_short = len({path.absolute().parent for path in given}) == 1 and not {*names} & {*taken}
    named = dict(zip(names if is_short else [path.as_posix() for path in given], given, strict=True))
    if len(named) < len(given):
        raise ConfigError("a player is given twice; accepted: different ones", key="run")
    return named
