"""An engine in its own thread, for callers in an event loop.

Public: `async_llm`, `stream` (a request between its event loop and the thread), `errors`, `openmp` (has other threads
    leave it the cores).
"""
