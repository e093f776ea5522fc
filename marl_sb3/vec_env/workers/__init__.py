"""Envs that are stepped by other processes on this machine, through shared memory.

`vec_env` is the vec env in the main process. It starts workers, each of which makes and steps a share of the envs
(`share`, `process`), and replaces those that end or hang (`supervisor`, `journal`).
"""
