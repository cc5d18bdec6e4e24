"""Weights of fewer bits: how they are stored, rounded, read from files, and multiplied.

Public: `schemes` (the names of `quantization=...`, without torch), `weight` (codes, scales and minima), `rounding`
(from plain weights), `linear`, `kernel_linear` and `few_rows` (layers that multiply), `checkpoint_config` and
`checkpoints` (compressed-tensors, AWQ, GPTQ), `gguf_blocks` and `gguf_file`, `loader` (a folder's weights as layers).
"""
