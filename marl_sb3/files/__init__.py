"""Files: written as a whole or not at all, read without following links, and YAML as plain data."""
