"""A run: what it is built from, its folder, its logs, and what it shows."""
