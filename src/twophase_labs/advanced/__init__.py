"""Lab 5: advanced techniques."""
