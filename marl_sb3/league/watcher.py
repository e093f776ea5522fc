"""Watch a training with a league: count results, take snapshots, and report metrics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from typing_extensions import override

from marl_sb3.core.metrics.episodes import Episode
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.sb3.tensors import read_weights, reset_optimizers, weights
from marl_sb3.core.state.checkpoint import store_of
from marl_sb3.core.state.state import TensorFile
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
from marl_sb3.core.training.callback import TrainingWatcher
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.files.atomic import remove_folder, write_whole
from marl_sb3.files.paths import file_names
from marl_sb3.league.league import League
from marl_sb3.league.pool import Member
from marl_sb3.types import PolicyID


def league_watcher(algorithm: MultiAgentAlgorithm, callback: BaseCallback) -> LeagueWatcher | None:
    """Return what watches a training with a `League`; see `WatcherMaker`."""
    assignment = algorithm.assignment
    if not isinstance(assignment, League):
        return None
    return LeagueWatcher(algorithm, assignment)  # type: ignore[abstract]  # hooks without a body do nothing


class LeagueWatcher(TrainingWatcher):
    """Counts the results of episodes, and changes the pool between iterations.

    Args:
        algorithm: the training.
        league: says who plays in it.
    """

    def __init__(self, algorithm: MultiAgentAlgorithm, league: League) -> None:
        self._algorithm, self._league = algorithm, league
        for name in league.exploiters:
            league.first_weights.setdefault(name, weights(algorithm.policies[name]))

    @override
    def finished(self, finished: Sequence[Episode], step: VecStep) -> None:
        for episode in finished:
            self._league.record(episode)

    @override
    def complete_result(self, result: Result) -> None:
        league, iteration = self._league, int(result["iteration"])
        result["league"] = league.metrics()
        for name in league.mains:
            if league.is_due(name, iteration):
                self._add(name, iteration)
        for name in league.exploiters:
            if league.ends(name, iteration):
                self._add(name, iteration)
                algorithm: Any = self._algorithm.policies[name]
                read_weights(algorithm, TensorFile("the first weights", league.first_weights[name]))()
                reset_optimizers(algorithm)
                league.begin_anew(name, iteration)

    # --- Snapshots ---------------------------------------------------------------------------------------------------

    def _add(self, policy_id: PolicyID, iteration: int) -> None:
        algorithm, league = self._algorithm, self._league
        own, statistics = weights(algorithm.policies[policy_id]), algorithm.processing[policy_id].get_state()
        member = Member(f"{policy_id}@{iteration}", policy_id, iteration, own, statistics)
        left = league.add(member)
        if league.folder is not None:
            self._write(member, league.folder)
            for each in left:
                remove_folder(_place(each, league.folder))

    def _write(self, member: Member, folder: Path) -> None:
        """Write all present policies as a checkpoint without optimizers and envs; commands load it like another."""
        league, algorithm = self._league, self._algorithm
        state, tensors = algorithm.get_state()
        files = {name: own if name.startswith("policy-") else {} for name, own in tensors.items()}
        kept = {name: value for name, value in state.items() if name not in ("env", "tracker", "callbacks", "random")}
        store = store_of(folder)
        store.write(store.place(_place(member, folder)), kept, files, algorithm.about())
        ratings = league.ratings()
        listed = [
            {"name": each.name, "policy": each.policy_id, "iteration": each.iteration, "rating": ratings[each.name]}
            for each in league.members.values()
        ]
        write_whole(folder / "members.json", json.dumps(listed, indent=1) + "\n")


def _place(member: Member, folder: Path) -> Path:
    """Return where a snapshot is written."""
    policy_id = str(member.policy_id)
    return folder / file_names([policy_id], f"@{member.iteration}")[policy_id]
