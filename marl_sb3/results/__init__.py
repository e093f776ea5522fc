"""What trainings have written: read from their run folders, and drawn as curves."""
