"""Runners step the envs with the actions of the policies and collect experience: here, in shards, or on Ray."""
