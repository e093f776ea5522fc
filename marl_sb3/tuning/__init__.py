"""The search for better settings: spaces, trials, worker processes, and what came out."""
