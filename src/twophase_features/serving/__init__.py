"""An engine in its own thread, for callers in an event loop.

Public: `async_llm`, `thread` (runs the engine's steps), `errors`, `openmp` (has other threads leave it the cores).
"""
