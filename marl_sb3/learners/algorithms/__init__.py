"""The algorithms: drop-ins for the classes of SB3 and sb3-contrib, and the learners of their policies."""
