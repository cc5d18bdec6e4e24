"""Several processes run one model: how they join, and how they share the work. Built on torch.distributed.

Public: `peers`; `tensor_parallel`, `expert_parallel`, `sharding`; `disaggregation`, `prefill_worker`, `remote_tier`,
`pages`. Private: how the processes talk. `twophase_tools.launch` starts them.
"""
