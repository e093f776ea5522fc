"""What `python -m marl_sb3.new` copies: envs that work here, too, so that type checks and linters see them."""
