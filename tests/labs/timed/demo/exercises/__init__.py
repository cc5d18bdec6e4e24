"""Exercises of the one lab."""
