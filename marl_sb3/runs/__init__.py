"""A run: from settings to a run folder, its logs and trackers, resuming it, and runs of several seeds."""

from marl_sb3.doors import DIALECTS

DIALECTS.add("run", "marl_sb3.runs.schema:RUN_SETTINGS")
