"""How long a prompt takes to read on this machine, and how long its K and V take through a socket of it."""

import socket
import statistics
import threading
import time

import torch

from twophase import SamplingParams
from twophase_labs.advanced.one_process import engine

NUM_TOKENS = 128


def prefill_s() -> float:
    """Seconds of the one step that reads a prompt."""
    llm = engine()
    prompt = {"prompt_token_ids": list(range(100, 100 + NUM_TOKENS))}
    llm.generate([prompt], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    return llm.engine.trace[-1].run_s


def transfer_s(num_bytes: int) -> float:
    """Seconds to send bytes to another thread of this machine through a socket, and to have them all there."""
    payload, target = torch.zeros(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    source, sink = socket.socketpair()
    with source, sink:
        start_s = time.perf_counter()
        sender = threading.Thread(target=source.sendall, args=(payload.numpy().data,))
        sender.start()
        view = memoryview(target.numpy().data)
        while view:
            view = view[sink.recv_into(view) :]
        sender.join()
        return time.perf_counter() - start_s


def moving_share_percent() -> float:
    """Time to move a prompt's K and V, in percent of the time to compute them; the median of five after a warm-up."""
    num_bytes = NUM_TOKENS * engine().kv_cache.spec.bytes_per_token
    shares = [100 * transfer_s(num_bytes) / prefill_s() for _ in range(6)]
    return statistics.median(shares[1:])
