"""Which sequences run, and which blocks they have; no tensors."""
