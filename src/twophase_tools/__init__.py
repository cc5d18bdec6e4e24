"""Tools around the engine: benchmarks, reports on compiled kernels, load, simulation, capacity planning, command line.

In each of these packages `__all__` names the modules that others (the course, a script of yours) may import. The rest
is its own, and may change.
"""

__all__ = ["bench", "capacity", "cli", "colours", "extras", "kernels", "launch", "load", "named_policies", "simulate"]
