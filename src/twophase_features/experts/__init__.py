"""Mixtures of experts (arXiv:1701.06538): in some layers the MLP is several, of which each token goes through a few.

Public: `config` (what config.json says of them), `weights` (their tensors and layers), `mixture` (the forward pass),
`load` (how many tokens each expert computes).
"""
