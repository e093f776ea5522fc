"""Compiled by numba: forward and backward passes of MLPs, and whole updates of PPO, A2C and replay algorithms."""
