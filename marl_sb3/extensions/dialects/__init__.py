"""Settings by the names of RLlib and in the format of rl-baselines3-zoo."""
