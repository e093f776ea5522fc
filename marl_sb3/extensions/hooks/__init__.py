"""Hooks of callbacks within rollouts: the episode at hand, and trajectories that they may rewrite.

They stand at the door `WATCHERS`; a training without such hooks has none of this.
"""
