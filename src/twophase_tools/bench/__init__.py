"""Benchmarks: `twophase bench engine | kernels | scheduling | serve`. Every result carries hardware and versions."""
