"""Which policy each agent has, and which rows of the vec env are a policy's."""
