"""How an env is found by its id, made, and brought into the form of a `ParallelEnv`."""
