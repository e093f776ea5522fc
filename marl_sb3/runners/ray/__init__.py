"""Shards on Ray: each runner is a Ray actor. Needs the extra `ray`."""
