"""Output for people: formatted numbers, tables, and views of a training for terminals, notebooks and plain text."""
