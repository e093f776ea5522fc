"""Runs as people view them: comparisons, reports, hints on what went wrong, and episodes played on a screen."""
