"""Will it fit, how many at once, how fast? A deployment on paper, from one YAML file.

yaml_file, kinds             a file of known keys, read with the line of each; every complaint says where
units                        GB and GiB told apart
config, example.yaml         what a plan is made from
memory                       bytes of weights, workspace and K/V on one GPU; blocks; requests that fit
workload_cost, steady_state  what a mean request costs by roofline, and many of them at once, by Little's law
pools                        prefill and decode on engines of their own: how many of each
cautions                     what should make one think again, with the number that says so
plan_file                    that section, read and opened as an engine
plan, report                 all of it together, as text and as JSON
engine_section               the engine's options as the plan has them, written below it
simulation                   the same engines under a simulated clock
"""

__all__ = ["cautions", "config", "engine_section", "memory", "plan", "plan_file", "pools", "report", "simulation"]
