"""Lab 8: one service in operation."""
