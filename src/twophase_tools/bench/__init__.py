"""Benchmarks: `twophase bench engine | kernels | quality | serve ...`. Every result carries hardware and versions."""

__all__ = [
    "machine",
    "perplexity",
    "quality",
    "quality_drift",
    "quality_probes",
    "quality_tasks",
    "quality_verdict",
    "serve",
]
