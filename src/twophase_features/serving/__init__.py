"""An engine in its own thread, for callers in an event loop."""
