"""Leagues: policies learn against each other, a pool of earlier ones, and opponents from files and from code.

settings     what a run says of its league
league       who plays whom: the `Assignment`
pool         the members, their results, and how they are drawn
runner       steps envs in which members play
snapshots    snapshots of a policy act in one batch
watcher      counts results and takes snapshots
"""
