"""Learning from rollouts: the buffers, and the learner that updates at the end of each."""
