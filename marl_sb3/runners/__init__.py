"""Runners step the envs with the actions of the policies and collect experience, in this process so far."""
