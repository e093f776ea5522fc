"""Envs that are stepped by other processes on this machine, through shared memory.

In the main process, `vec_env` is the vec env: it sends requests to workers (`supervisor`), reads the steps from shared
memory (`steps`). The supervisor brings back the envs of workers that end or hang. In each worker, `server` answers the
requests, and steps its part of the envs.
"""
