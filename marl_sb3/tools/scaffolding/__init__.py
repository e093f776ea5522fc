"""A start for an env of one's own: its module, its test, settings and a page."""
