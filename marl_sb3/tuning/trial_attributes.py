"""The names of the attributes that a study stores with each trial, as Optuna's user attributes."""

from __future__ import annotations

WORKER, INDEX, RETRY_OF, DEATHS = "worker", "index", "retry_of", "deaths"
FOLDER, SEED, ERROR = "folder", "seed", "error"
ITERATIONS, ENV_STEPS, SECONDS, RETURN, CHECKPOINT = "iterations", "env_steps", "seconds", "return", "checkpoint"

# Errors of trials that did not fail because of their settings.
KILLED, INTERRUPTED = "its process ended", "interrupted"
