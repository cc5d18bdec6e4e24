"""The engine without the model: the real scheduler under a clock that a cost model advances.

hardware, model_shapes       what a GPU can do at most, and what a model asks of it, with sources
step_load, cost_model        what a step computes, and how long that takes: measured, or by roofline
nnls, calibrate              fitting the cost model to this machine
traffic                      requests that come by the clock
limits, simulator, fleet     one engine, and many behind a router
progress, observers          what becomes of a request, and what is kept of a run
histogram                    percentiles in constant memory
validate                     predicted against measured
"""

__all__ = [
    "calibrate",
    "cost_model",
    "fleet",
    "hardware",
    "limits",
    "model_shapes",
    "nnls",
    "observers",
    "progress",
    "simulator",
    "step_load",
    "traffic",
]
