"""PPO: the class `marl_sb3.PPO`, and its learner."""
