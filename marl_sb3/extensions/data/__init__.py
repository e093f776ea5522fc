"""Episodes on disk: recording them as Minari datasets, reading such datasets, and estimating policies on them."""
