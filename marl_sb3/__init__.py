"""Multi-agent reinforcement learning with Stable-Baselines3.

Names are imported when they are first used: `import marl_sb3` takes no torch.
"""
