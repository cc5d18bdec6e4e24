"""Benchmarks: `twophase bench engine | kernels | scheduling | serve`. Every result carries the hardware and the versions."""
