"""Mixtures of experts (arXiv:1701.06538): in some layers a router sends each token through a few of several MLPs.

Public: `config` (config.json), `weights` (their tensors and layers), `mixture` (the forward pass), `load` (how many
    tokens each expert computes).
"""
