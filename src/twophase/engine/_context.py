"""What a caller has switched on in its thread, in PyTorch, does not reach the model."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_context() -> Iterator[None]:
    """PyTorch as in a new thread: no autocast, no inference mode, no default device, no other `TorchFunctionMode`.

    K and V of a run stay in the prefix cache, where other requests find them, and weights stay for good. Settings of
    the whole process are another matter: to change them here would change them for other threads as well. So nothing
    in the engine depends on the default dtype, and deterministic algorithms are used where they are asked for.
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
