"""Output for people: formatted numbers, tables, and views of a training run for terminals, notebooks and plain text."""
