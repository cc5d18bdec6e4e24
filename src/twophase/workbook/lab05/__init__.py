"""Lab 5, advanced techniques: exercises, checks, banks and pictures."""
