"""Lab 3: decode. One token per step: what it reads, where its cache lives, and the kernels that read it."""
