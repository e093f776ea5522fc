"""The policies of a run, the policy and the array columns of each agent, and SB3's hyperparameters."""
