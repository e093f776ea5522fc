"""Learners: each trains one policy by its SB3 algorithm; `PolicySpec` says how."""
