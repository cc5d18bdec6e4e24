"""Several processes, one model: joining them, starting them, and what they share out. Built on torch.distributed."""
