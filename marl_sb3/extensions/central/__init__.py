"""Critics that see the whole env while the actors see their own observations (MAPPO, Yu et al. 2022)."""
