"""What the commands have in common, and their command lines; nothing heavy is imported."""
