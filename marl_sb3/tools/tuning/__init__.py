"""Hyperparameter search: spaces, studies, trials in worker processes, confirmation with fresh seeds, reports."""

import warnings

warnings.filterwarnings("ignore", message="IProgress not found")
