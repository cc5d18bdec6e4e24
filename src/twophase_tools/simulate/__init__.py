"""The engine without the model: the real scheduler under a clock that a cost model advances.

hardware, model_shapes       what a GPU can do at most, and what a model asks of it, with sources
step_load, cost_model        what a step computes, and how long that takes: a sum, or by roofline
traffic                      requests that come by the clock
limits, simulator            one engine
routers, fleet               many behind a router
pools, arrived_pages         prefill and decode in pools of their own
fleet_report                 a run engine by engine
"""

__all__ = [
    "arrived_pages",
    "cost_model",
    "fleet",
    "fleet_report",
    "hardware",
    "limits",
    "model_shapes",
    "pools",
    "routers",
    "simulator",
    "step_load",
    "traffic",
]
