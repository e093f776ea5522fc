"""Envs and shards in other processes: workers, shards, and runners on this machine or on Ray."""
