"""Envs that are stepped by other processes on this machine, through shared memory.

In the main process, `vec_env` is the vec env: it sends requests to workers (`supervisor`, `worker`, `channel`), reads
the steps from shared memory (`arrays`, `extras`), and replaces workers that end or hang (`journal`, `cut_episodes`). A
`fork_server` starts the workers. In each of them, `process` answers the requests (`share_server`), and steps its part
of the envs (`share`).
"""
