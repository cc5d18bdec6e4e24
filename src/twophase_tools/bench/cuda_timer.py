"""Seconds per call on a GPU, as a serving engine sees it: replayed from a CUDA graph, inputs not in the cache."""

import statistics
from collections.abc import Callable

import torch

from twophase_tools.bench.machine import cuda_times_s

L2_PER_FLUSH = 4  # caches may keep two copies of a line, and none evicts in exact order
MIN_FLUSH_BYTES = 64 * 1024**2
MAX_CALLS = 20
NUM_WARMUPS, NUM_REPLAYS = 10, 10
GRAPH_TIME_S = 0.02  # a graph of about this length hides its own launch, a fixed few microseconds


class Flush:
    """Fills the L2 cache with other data, before and after a call.

    Two buffers take turns, each several times the cache. With one, a flush after a flush would find some of the buffer
    still cached, a flush after a call less of it, and the difference would be taken for the call's time. With two,
    what is read was last read a whole other buffer ago, whether there is a call in between or not. Reading only, they
    leave no dirty lines for the call to write back.
    """

    def __init__(self, device: torch.device, num_bytes: int) -> None:
        self.buffers = tuple(torch.zeros(num_bytes // 4, dtype=torch.float32, device=device) for _ in range(2))
        self._sum = torch.zeros((), dtype=torch.float32, device=device)

    def around(self, function: Callable[[], object]) -> None:
        """Read one buffer, call, read the other."""
        before, after = self.buffers
        self.read(before)
        function()
        self.read(after)

    def read(self, buffer: torch.Tensor) -> None:
        torch.sum(buffer, dim=0, out=self._sum)


class ColdGraphTimer:
    """Times calls under CUDA-graph replay with a cold L2 cache.

    One graph holds [flush, call, flush] a number of times, another [flush, flush] alone; the difference is the calls'
    time. Without the graph a Python launch of about 11 us would hide what the kernel does; without the flush a second
    call would read its inputs from L2. The second flush also pays for writing back what the call wrote.
    """

    def __init__(self, device: torch.device) -> None:
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = Flush(device, max(MIN_FLUSH_BYTES, L2_PER_FLUSH * l2_bytes))

    def __call__(self, function: Callable[[], object]) -> float:
        """Median seconds of one call, 0.0 if it drowns in the noise. What `function` raises comes through."""
        for _ in range(NUM_WARMUPS):  # the first compiles; the others bring the clocks up
            function()
        torch.cuda.synchronize()
        eager_s = statistics.median(cuda_times_s(function, 3))
        num_calls = min(MAX_CALLS, max(1, round(GRAPH_TIME_S / max(eager_s, 1e-6))))
        with_call_s, without_s = self._replay_s(function, num_calls), self._replay_s(lambda: None, num_calls)
        return max(with_call_s - without_s, 0.0) / num_calls

    def _replay_s(self, function: Callable[[], object], num_calls: int) -> float:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(num_calls):
                self._flush.around(function)
        graph.replay()
        return statistics.median(cuda_times_s(graph.replay, NUM_REPLAYS))
