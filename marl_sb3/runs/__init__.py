"""The run folder: who writes its logs, and who reads it."""
