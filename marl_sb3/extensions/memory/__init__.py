"""Algorithms with a replay buffer for policies with memory (R2D2, Kapturowski et al. 2019)."""
