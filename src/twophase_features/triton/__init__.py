"""Attention by Triton kernels: the default on CUDA. On a CPU in mode 'cpu', products of few rows too.

Public: `attention` (the backend), `available` (whether the kernels run on a device), `linear` (layers that multiply few
rows by a kernel), `huge_pages` (memory of weights).
"""
