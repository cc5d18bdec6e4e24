"""Lab 1, autoregression: exercises, their checks, and what its notebook draws and measures with."""
