"""A2C: SB3's class with fused updates, and its learner."""
