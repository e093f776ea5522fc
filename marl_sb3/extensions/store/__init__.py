"""Checkpoints in folders: written atomically, verified before anything in them is used."""
