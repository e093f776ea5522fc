"""Policies whose experience is collected in shards: copies that act in a shard, and receivers beside the learners."""
