"""Other processes that work for this one: envs are stepped, shards rolled out, trials trained and envs examined there.

A `Worker` is such a process as this one sees it: `fork_server` starts it, `serve` runs in it, a `channel` carries the
messages, and `messages` says how requests, results, exceptions, log records and output travel. A `pool` hands out work
to several of them, or to actors on a `ray` cluster.
"""
