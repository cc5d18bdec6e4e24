"""Lab 7: one service on many machines."""
