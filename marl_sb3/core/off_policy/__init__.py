"""Learning from a replay buffer: the buffers, and the learner that updates from them."""
