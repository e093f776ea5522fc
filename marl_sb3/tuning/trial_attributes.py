"""What a trial carries along in its study, besides its parameters: the names of Optuna's user attributes."""

from __future__ import annotations

WORKER, INDEX, RETRY_OF, DEATHS = "worker", "index", "retry_of", "deaths"
FOLDER, SEED, ERROR = "folder", "seed", "error"

# Why a trial was interrupted: it says nothing about its settings.
KILLED, INTERRUPTED = "its process ended", "interrupted"
