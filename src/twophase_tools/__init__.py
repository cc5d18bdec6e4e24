"""Tools around the engine: benchmarks, load, simulation, capacity planning, the command line."""
