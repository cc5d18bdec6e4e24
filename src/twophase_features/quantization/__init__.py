"""Weights of fewer bits: how they are stored, rounded, read from files, and multiplied."""
