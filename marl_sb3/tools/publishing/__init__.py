"""A run as others get it: one checkpoint with its settings, measured, described on a model card, and filmed."""
