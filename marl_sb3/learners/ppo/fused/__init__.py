"""PPO's forward pass and update for plain MLPs, as kernels that numba compiles."""
