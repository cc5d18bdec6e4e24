"""Lab 4, scheduling: exercises, their checks, and what its notebook draws and measures with."""
