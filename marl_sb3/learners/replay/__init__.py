"""Algorithms with a replay buffer whose updates run in kernels: `marl_sb3.DQN`, `marl_sb3.SAC` and others."""
