"""The one lab."""
