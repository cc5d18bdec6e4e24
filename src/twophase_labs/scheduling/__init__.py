"""Lab 4: scheduling."""
