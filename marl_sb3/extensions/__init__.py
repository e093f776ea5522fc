"""The extensions that come with the package, at the doors of the core: each is imported when it is first used."""

from __future__ import annotations

from marl_sb3.doors import (
    ACTION_FORMS,
    ALGORITHM_TABLES,
    ASSIGNED_RUNNERS,
    CALLBACK_CHECKS,
    DIALECTS,
    ENGINES,
    ENV_FINDERS,
    ENV_KINDS,
    EXECUTIONS,
    EXPERIENCE_HOOKS,
    FILMS,
    LEARNER_PARTS,
    MAPPING_FUNCTIONS,
    POLICY_FILES,
    POLICY_SECTIONS,
    SB3_VEC_ENVS,
    STEPPED_ELSEWHERE,
    STORES,
    VIEWS,
    WATCHERS,
)

ACTION_FORMS.add("joined", "marl_sb3.extensions.fast.joined_actions:joined_actions")
CALLBACK_CHECKS.add("hooks", "marl_sb3.extensions.hooks.accepted:require_usable")
DIALECTS.add("other libraries", "marl_sb3.extensions.dialects.names:OTHER_NAMES")
ASSIGNED_RUNNERS.add("each episode", "marl_sb3.extensions.assignment:AssignedRunner")
ASSIGNED_RUNNERS.add("league", "marl_sb3.league.runner:LeagueRunner")
ALGORITHM_TABLES.add("marl_sb3", "marl_sb3.extensions.fast.builtin:TABLE")
ENGINES.add("kernels", "marl_sb3.extensions.fast.fused_on_policy:kernel_engine")
ENV_FINDERS.add("built_in", "marl_sb3.envs.finding:BUILT_IN")
ENV_FINDERS.add("installed", "marl_sb3.envs.finding:INSTALLED")
ENV_FINDERS.add("open_spiel", "marl_sb3.envs.open_spiel:FINDER")
ENV_KINDS.add("several", "marl_sb3.envs.tuples:SEVERAL")
ENV_KINDS.add("rllib", "marl_sb3.envs.rllib:KIND")
ENV_KINDS.add("tuples", "marl_sb3.envs.tuples:KIND")
ENV_KINDS.add("dead agents act", "marl_sb3.envs.tuples:DEAD_ACT")
ENV_KINDS.add("monitored", "marl_sb3.envs.gymnasium_wrappers:MONITORED")
EXECUTIONS.add("compiled code", "marl_sb3.extensions.fast.compiled_rollouts:IN_COMPILED_CODE")
EXECUTIONS.add("shards", "marl_sb3.extensions.remote.sharded:IN_SHARDS")
EXPERIENCE_HOOKS.add("trajectories", "marl_sb3.extensions.hooks.trajectories:trajectory_hooks")
FILMS.add("gif", "marl_sb3.extensions.display.video:write_film")
LEARNER_PARTS.add("central_critic", "marl_sb3.extensions.central.twin:EitherCritic")
LEARNER_PARTS.add("exploration", "marl_sb3.extensions.exploration:Explorer")
LEARNER_PARTS.add("imitation_data", "marl_sb3.extensions.data.recorded_data:ImitationData")
LEARNER_PARTS.add("replay_data", "marl_sb3.extensions.data.recorded_data:ReplayData")
MAPPING_FUNCTIONS.add("each episode", "marl_sb3.extensions.assignment:read_function")
POLICY_FILES.add("sb3", "marl_sb3.extensions.transfer.sb3_files:SB3_FILES")
POLICY_SECTIONS.add("central", "marl_sb3.extensions.central.settings:CentralSettings")
POLICY_SECTIONS.add("data", "marl_sb3.extensions.data.settings:DataSettings")
SB3_VEC_ENVS.add("rows", "marl_sb3.extensions.sb3_vec_env:FlatVecEnv")
STEPPED_ELSEWHERE.add("workers", "marl_sb3.extensions.remote.workers.vec_env:WorkersVecEnv")
STEPPED_ELSEWHERE.add("clients", "marl_sb3.envs.external_vec_env:for_clients")
STORES.add("folder", "marl_sb3.extensions.store.checkpoint_folder:STORE")
STORES.add("hub", "marl_sb3.extensions.hub:STORE")
VIEWS.add("terminal", "marl_sb3.extensions.display.progress:standard_view")
WATCHERS.add("episodes", "marl_sb3.extensions.hooks.episodes:episode_hooks")
WATCHERS.add("central_critic", "marl_sb3.extensions.central.part:watch_envs")
