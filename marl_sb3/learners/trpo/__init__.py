"""TRPO: sb3-contrib's class with fused rollouts, and its learner."""
