"""Benchmarks: `twophase bench engine | kernels | scheduling | serve`. Every result carries hardware and versions."""

__all__ = ["machine", "perplexity", "quality", "quality_tasks", "serve"]
