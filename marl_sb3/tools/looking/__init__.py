"""What runs say when they are looked at: their records, curves, comparisons, and hints on what went wrong."""
