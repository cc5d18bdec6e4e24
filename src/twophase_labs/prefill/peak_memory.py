"""The most memory that torch held at a time during a call, from its own allocator's log."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], object]) -> int:
    """Bytes that tensors on the CPU occupy at the worst moment of the call, beyond what was there before it."""
    with _quiet_errors(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        result = call()
    del result
    held = most = 0
    events = log.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held += event.nbytes()  # negative when memory is given back
        most = max(most, held)
    return most


@contextmanager
def _quiet_errors() -> Iterator[None]:
    """The profiler's library writes its own start and stop to file descriptor 2; a notebook would show it."""
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def attention_inputs(num_tokens: int, num_heads: int = 2, head_dim: int = 64) -> list[torch.Tensor]:
    """Random q, k and v, [L, H, D] each."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(num_tokens, num_heads, head_dim, generator=generator) for _ in range(3)]
