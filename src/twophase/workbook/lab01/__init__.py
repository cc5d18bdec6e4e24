"""Lab 1, autoregression: exercises, checks, and what the notebook draws and drives."""
