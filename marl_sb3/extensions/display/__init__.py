"""Output for people: numbers, tables, pictures, films, and views of a training for terminals and notebooks."""
