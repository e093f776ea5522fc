"""What can be set: kinds of values, ids, algorithms, networks, and the settings of a policy."""
