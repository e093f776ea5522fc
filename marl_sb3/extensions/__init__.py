"""The extensions that come with the package, at the doors of the core: each is imported when it is first used."""

from __future__ import annotations

from marl_sb3.doors import (
    ALGORITHM_TABLES,
    ASSIGNED_RUNNERS,
    DIALECTS,
    ENV_FINDERS,
    ENV_KINDS,
    POLICY_SECTIONS,
    STORES,
    VECTORIZERS,
    VIEWS,
    WATCHERS,
)

DIALECTS.add("other libraries", "marl_sb3.extensions.dialects.names:OTHER_NAMES")
ASSIGNED_RUNNERS.add("each episode", "marl_sb3.extensions.assignment:AssignedRunner")
ASSIGNED_RUNNERS.add("league", "marl_sb3.league.runner:LeagueRunner")
ALGORITHM_TABLES.add("marl_sb3", "marl_sb3.extensions.fast.builtin:TABLE")
ENV_FINDERS.add("built_in", "marl_sb3.envs.finding:BUILT_IN")
ENV_FINDERS.add("batches", "marl_sb3.envs.batches.finding:FINDER")
ENV_FINDERS.add("installed", "marl_sb3.envs.finding:INSTALLED")
ENV_FINDERS.add("open_spiel", "marl_sb3.envs.open_spiel:FINDER")
ENV_KINDS.add("turns", "marl_sb3.envs.turn_based:TURN_BASED")
ENV_KINDS.add("gymnasium", "marl_sb3.envs.gymnasium_wrappers:GYMNASIUM")
ENV_KINDS.add("several", "marl_sb3.envs.tuples:SEVERAL")
ENV_KINDS.add("rllib", "marl_sb3.envs.rllib:KIND")
ENV_KINDS.add("tuples", "marl_sb3.envs.tuples:KIND")
ENV_KINDS.add("dead agents act", "marl_sb3.envs.tuples:DEAD_ACT")
POLICY_SECTIONS.add("central", "marl_sb3.extensions.settings:CentralSettings")
POLICY_SECTIONS.add("data", "marl_sb3.extensions.settings:DataSettings")
POLICY_SECTIONS.add("learning", "marl_sb3.extensions.settings:LearningSettings")
STORES.add("folder", "marl_sb3.extensions.store.checkpoint_folder:STORE")
STORES.add("hub", "marl_sb3.extensions.hub:STORE")
VECTORIZERS.add("n_workers", "marl_sb3.extensions.remote.workers.vec_env:WorkersVecEnv")
VECTORIZERS.add("steps_apart", "marl_sb3.envs.external_vec_env:for_clients")
VIEWS.add("terminal", "marl_sb3.extensions.display.progress:standard_view")
WATCHERS.add("episodes", "marl_sb3.extensions.hooks.episodes:episode_hooks")
WATCHERS.add("trajectories", "marl_sb3.extensions.hooks.rewriting:trajectory_hooks")
WATCHERS.add("central_critic", "marl_sb3.extensions.central.critic:watch_envs")
