"""What can be set: kinds of values, ids, algorithms, networks, and the schema of all settings."""
