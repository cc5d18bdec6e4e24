"""An engine in a thread of its own, for callers in an event loop.

Public: `async_llm`, `thread` (runs the engine's steps), `openmp` (has other threads leave it the cores).
"""
