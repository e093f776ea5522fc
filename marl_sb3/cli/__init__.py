"""The command lines of all commands, and code that they share; nothing heavy is imported."""
