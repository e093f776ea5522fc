"""The updates of algorithms with a replay buffer for plain MLPs, in kernels that numba compiles."""
