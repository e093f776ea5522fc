"""The logs of a run: JSON lines, CSV, and TensorBoard's events with the settings; truncating them for a resume."""
