"""Several processes, one model: joining them, starting them, and what they share out. Built on torch.distributed.

Public: `launch`, `peers`; `tensor_parallel`, `expert_parallel`, `sharding`; `disaggregation`, `prefill_worker`,
`remote_tier`, `pages`. Private: how the processes talk.
"""
