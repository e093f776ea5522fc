"""Examine an env: play it, and say in plain words what would go wrong in training."""
