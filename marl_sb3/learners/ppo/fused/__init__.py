"""PPO's forward pass and update for plain MLPs, in kernels that numba compiles."""
