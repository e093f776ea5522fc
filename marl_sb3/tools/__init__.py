"""Tools above the trainings; none imports another."""
