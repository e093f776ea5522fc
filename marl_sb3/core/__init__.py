"""The core: how several SB3 algorithms act and learn in the same envs, in one process, with PyTorch.

It imports no extension and no tool: what it does not do itself hangs on the doors of `marl_sb3.doors`. From the bottom
up: `config`, `state`, `envs`, `vec_env`, `mapping`, `metrics`, `policies`, `processing`, `sb3`, `acting`, `experience`,
`learners` with `on_policy` and `off_policy`, and `training`, where `MultiAgentAlgorithm` is.
"""
