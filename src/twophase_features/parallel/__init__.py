"""Several processes, one model: joining them, and what they share out. Built on torch.distributed.

Public: `peers`; `tensor_parallel`, `expert_parallel`, `sharding`; `disaggregation`, `prefill_worker`, `remote_tier`,
`pages`. Private: how the processes talk. `twophase_tools.launch` starts them.
"""
