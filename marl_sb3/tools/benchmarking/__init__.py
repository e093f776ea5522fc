"""Benchmarks: algorithms x envs x seeds of a file, trained by any number of processes that share a folder."""
