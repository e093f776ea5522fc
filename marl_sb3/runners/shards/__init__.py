"""Shards: fixed shares of the envs with random streams of their own, and the runners that roll them out."""
