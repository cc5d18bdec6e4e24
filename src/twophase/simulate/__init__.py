"""The engine without the model: the real scheduler under a clock that a cost model advances.

hardware, model_shapes      what a GPU can do at most, and what a model asks of it, with sources
step_load, cost_model       what a step computes, and how long that takes: measured, or by roofline
nnls, calibrate             fitting the cost model to this machine
simulator, fleet            one engine, and many of them behind a router
observers, histogram        what is kept of a run: everything, or percentiles in constant memory
traffic                     requests that come by the clock
validate                    predicted against measured
"""
