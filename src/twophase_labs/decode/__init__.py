"""Lab 3, decode: exercises, their checks, and what its notebook draws and measures with."""
