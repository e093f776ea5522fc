"""PPO: `marl_sb3.PPO`, and what trains a policy by it."""
