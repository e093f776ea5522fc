"""Vectorised multi-agent envs: E envs as (E, A, ...) arrays, with several vectorizers."""
