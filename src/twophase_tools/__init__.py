"""Tools around the engine: benchmarks, load, simulation, capacity planning, profiles, command line.

In each of these packages `__all__` names the modules that others (the course, a script of yours) may import. The rest
is its own, and may change.
"""

__all__ = ["bench", "capacity", "cli", "colours", "extras", "launch", "load", "named_policies", "simulate"]
