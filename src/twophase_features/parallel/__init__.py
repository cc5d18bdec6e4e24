"""Several processes, one model: joining them, starting them, and what they share out. Built on torch.distributed.

Public: `launch`, `peers`; `tensor_parallel`, `expert_parallel`, `sharding`; `disaggregation`, `prefill_worker`,
`pages`, `remote_tier`. Private: how the processes talk.
"""
