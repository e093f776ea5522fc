"""The algorithms: SB3's, one per policy, driven together. Everything that knows SB3's private members is in here."""
