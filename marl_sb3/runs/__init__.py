"""A run: building, executing and resuming it, its folder, its logs, and its output."""
