"""Share out shards to runners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def balanced(shards: Sequence[int], runners: Sequence[int], holders: Mapping[int, int]) -> dict[int, list[int]]:
    """Share out all shards evenly; a shard stays where it is if possible.

    Args:
        shards: all shards.
        runners: the runners that are ready, at least one.
        holders: shard -> the runner that has it.

    Returns:
        Runner -> its shards, in order.
    """
    least, more = divmod(len(shards), len(runners))
    quotas = {runner: least + (place < more) for place, runner in enumerate(runners)}
    assigned: dict[int, list[int]] = {runner: [] for runner in runners}
    homeless = []
    for shard in shards:
        holder = holders.get(shard)
        if holder in assigned and len(assigned[holder]) < quotas[holder]:
            assigned[holder].append(shard)
        else:
            homeless.append(shard)
    for runner, quota in quotas.items():
        room = quota - len(assigned[runner])
        assigned[runner] += homeless[:room]
        del homeless[:room]
    return {runner: sorted(own) for runner, own in assigned.items()}
