"""Train policies: one SB3 algorithm per policy. `sb3/` holds everything that uses SB3's private members."""
