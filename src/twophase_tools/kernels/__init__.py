"""The kernels' code as compiled for GPUs that this machine does not have, and the least work that each must do."""

__all__ = ["aot", "production", "split_balance", "work"]
