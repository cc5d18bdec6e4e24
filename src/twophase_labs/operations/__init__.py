"""Lab 8: a service in operation."""
