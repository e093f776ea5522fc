"""Policies before they are built: which there are, whose they are, where their agents stand, what may be set."""
