"""Lab 9: your engine."""
