"""Hyperparameter search: spaces, studies, trials in worker processes, confirmation with fresh seeds, reports."""
