"""Answers are judged in forks of a process that has torch loaded."""

import os

import torch


def renew_torch_in_forks() -> None:
    """Let every later fork of this process make torch's thread pool anew while it has one thread.

    The pool of its parent is of no use to a fork, and torch replaces it at the first parallel operation, without a
    lock: of several threads that come first, as in transformers' loading of weights, one can find no pool at all
    ('Invalid thread pool!').
    """
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(torch.get_num_threads()))
