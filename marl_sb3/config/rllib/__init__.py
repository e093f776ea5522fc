"""RLlib's names of settings: one table of what they mean here, and the translation."""
