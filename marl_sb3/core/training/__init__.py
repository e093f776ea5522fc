"""The joint training: `MultiAgentAlgorithm`, its loop, its runner, callbacks and results."""
