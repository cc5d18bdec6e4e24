"""Benchmarks: `twophase bench engine | kernels | scheduling`. Every result carries the hardware and the versions."""
