"""Hyperparameter search: spaces, studies, trials in worker processes, confirmation with fresh seeds, reports."""

from __future__ import annotations

import warnings

import lazy_loader

# Of tqdm, which Optuna imports and which shows nothing here, in a notebook without ipywidgets.
warnings.filterwarnings("ignore", message="IProgress not found")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
