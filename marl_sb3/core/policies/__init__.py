"""The policies of a run, the policy and the array columns of each agent, and the classes of networks by name."""
