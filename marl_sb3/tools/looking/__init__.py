"""Looking at runs: comparisons, reports, hints on what went wrong, and episodes played on a screen."""
