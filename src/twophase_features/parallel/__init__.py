"""Several processes run one model, over torch.distributed; `twophase_tools.launch` starts them."""
