"""Seconds per call on a GPU, as a serving engine sees it: replayed from a CUDA graph, inputs not in the cache."""

import statistics
from collections.abc import Callable

import torch

from twophase_tools.bench.machine import cuda_times_s

# Several times any L2 cache of today (H200: 50 MiB), which may keep two copies of a line.
FLUSH_BYTES = 256 * 1024**2
MAX_CALLS = 20
NUM_WARMUPS = 10
GRAPH_TIME_S = 0.02  # a graph of about this length hides its own launch, a fixed few microseconds


class ColdGraphTimer:
    """Times calls under CUDA-graph replay with a cold L2 cache.

    One graph holds [flush, call] a number of times, another [flush] alone; the difference is the calls' time. Without
    the graph a Python launch of about 11 us would hide what the kernel does; without the flush a second call would read
    its inputs from L2. The flush only reads, so that it leaves no dirty lines for the call to write back.

    Only its own buffer is changed.
    """

    def __init__(self, device: torch.device, num_replays: int = 10) -> None:
        self._buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device=device)
        self._sum = torch.zeros((), dtype=torch.float32, device=device)
        self._num_replays = num_replays

    def __call__(self, function: Callable[[], object]) -> float:
        """Median seconds of one call, 0.0 if it drowns in the noise. What `function` raises on its first, eager call
        comes through."""
        for _ in range(NUM_WARMUPS):  # the first compiles; the others bring the clocks up
            function()
        torch.cuda.synchronize()
        eager_s = statistics.median(cuda_times_s(function, 3))
        num_calls = min(MAX_CALLS, max(1, round(GRAPH_TIME_S / max(eager_s, 1e-6))))
        with_call_s = self._replay_s(function, num_calls)
        without_s = self._replay_s(lambda: None, num_calls)
        return max(with_call_s - without_s, 0.0) / num_calls

    def _replay_s(self, function: Callable[[], object], num_calls: int) -> float:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(num_calls):
                torch.sum(self._buffer, dim=0, out=self._sum)
                function()
        graph.replay()
        return statistics.median(cuda_times_s(graph.replay, self._num_replays))
