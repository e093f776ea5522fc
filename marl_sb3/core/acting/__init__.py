"""How the policies of all agents choose their actions."""
