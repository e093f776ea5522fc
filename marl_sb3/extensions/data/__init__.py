"""Episodes on disk: recorded as Minari datasets, read again, learned from, and used to estimate policies."""
