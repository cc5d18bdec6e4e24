"""An engine in its own thread, for callers in an event loop.

Public: `async_llm`, `thread` (runs the engine's steps), `stream` (a request between the two), `errors`, `openmp` (has
    other threads leave it the cores).
"""
