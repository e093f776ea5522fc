"""Buffers that hold the agents' experience until the next update."""
