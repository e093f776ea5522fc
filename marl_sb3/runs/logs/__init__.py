"""The logs of a run: JSON lines, CSV, and TensorBoard's events, with the settings; and how a resume truncates them."""
