"""How long pages travelled, and how much of that the prefill had to wait for."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final


@dataclass(frozen=True, slots=True)
class TransferRecord:
    """The pages that one forward pass sent.

    Attributes:
        num_blocks, num_bytes: In all layers together.
        compute_s: The forward pass, packing included.
        pack_s: Copying pages into buffers, which the computing thread does itself: never hidden.
        send_s: Pages were being sent, by the thread that does nothing else.
        late_s: Part of `send_s` that came after the forward pass.
    """

    num_blocks: int
    num_bytes: int
    compute_s: float
    pack_s: float
    send_s: float
    late_s: float

    @property
    def hidden_share(self) -> float:
        """Share of the transfer's time, packing and sending, during which the next layers were computed."""
        total_s = self.pack_s + self.send_s
        return (self.send_s - self.late_s) / total_s if total_s else 0.0


@final
class TransferClock:
    """Notes the times of one transfer. The computing thread and the sending thread write different fields."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start_s = self._end_s = clock()
        self._num_blocks = self._num_bytes = 0
        self._pack_s = 0.0
        self._sent: list[tuple[float, float]] = []

    def packed(self, start_s: float, num_blocks: int, num_bytes: int) -> None:
        """A layer's pages were packed, from `start_s` until now."""
        self._pack_s += self._clock() - start_s
        self._num_blocks += num_blocks
        self._num_bytes += num_bytes

    def computed(self) -> None:
        """The forward pass is over."""
        self._end_s = self._clock()

    def sent(self, start_s: float, end_s: float) -> None:
        """A layer's pages were sent."""
        self._sent.append((start_s, end_s))

    def record(self) -> TransferRecord:
        """To be called when all pages are sent."""
        send_s = sum(end - start for start, end in self._sent)
        late_s = sum(max(0.0, end - max(start, self._end_s)) for start, end in self._sent)
        compute_s = self._end_s - self._start_s
        return TransferRecord(self._num_blocks, self._num_bytes, compute_s, self._pack_s, send_s, late_s)
