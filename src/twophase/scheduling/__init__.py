"""Which sequences run, with which blocks: `scheduler`, `planner`, `policy`, `limits`, `sequence`. No tensors."""
