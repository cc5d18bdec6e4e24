"""Will it fit, how many at once, how fast? A deployment on paper, from one file.

units                        GB and GiB told apart
config, example.yaml         what a plan is made from
memory                       bytes of weights, workspace and K/V on one GPU; blocks; requests that fit
workload_cost, steady_state  what a mean request costs by roofline, and many of them at once, by Little's law
plan                         all of it together; prefill and decode on engines of their own, how many of each
report                       the plan as text and as JSON
engine, elsewhere            the engine of a plan, opened; the plan as vLLM's command lines or a cluster's values
"""

__all__ = ["config", "engine", "memory", "plan", "report"]
