"""Sliding windows with attention sinks, and models whose layers see different keys."""
