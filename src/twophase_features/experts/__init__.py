"""Mixtures of experts (arXiv:1701.06538): in some layers a router sends each token through a few of several MLPs."""
