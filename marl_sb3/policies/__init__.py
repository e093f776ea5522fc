"""Which policies a run has, the policy and the array columns of each agent, and hyperparameters for SB3."""
