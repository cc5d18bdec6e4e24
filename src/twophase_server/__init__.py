"""The engine behind HTTP, with OpenAI's API: `twophase serve`."""

__all__ = ["app", "background", "metric_families", "run", "settings"]
