"""PyTorch modes that a caller has enabled in its thread do not affect the model."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_context() -> Iterator[None]:
    """PyTorch as in a new thread: no autocast, no inference mode, no default device, no other `TorchFunctionMode`.

    A run's K and V stay in the prefix cache and its weights in the model, so a caller's context must not affect them.
    Process-wide settings are left alone, because other threads share them: nothing in the engine depends on the default
    dtype, and deterministic algorithms are used where the process asks for them.
    """
    casting = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    try:
        for kind in casting:
            torch.set_autocast_enabled(kind, False)
        with torch._C.DisableTorchFunction(), torch.inference_mode(False):
            yield
    finally:
        for kind in casting:
            torch.set_autocast_enabled(kind, True)
