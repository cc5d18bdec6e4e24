"""A line to one peer: messages and pages go out on a thread of their own, and come in on another.

The thread that computes never waits for the network: it puts what it has to say into a queue. That is what overlaps a
transfer with the next layers. On a GPU the two threads work on a stream of their own, so that NCCL's sends wait for the
layer they send and not for what was queued after it.

A frame is a header, int64 [2]: (kind, number of bytes), then the bytes. A side that has nothing to say sends an empty
frame from time to time; one that is silent for longer than the peers' limit is lost. So a process that was stopped is
noticed, and one that only computes for long is not taken for it.
"""

import abc
import pickle
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor

from twophase_features.parallel._protocol import Bye, Message, Pages
from twophase_features.parallel.pages import KVReceiver
from twophase_features.parallel.peers import Peers

HEARTBEATS_PER_LIMIT = 4
JOIN_S = 2.0
_ALIVE, _MESSAGE, _LAYER = range(3)

Noted = Callable[[float, float], None]


class Link(abc.ABC):
    """One end of a line. What comes in goes to an `Inbox`."""

    @abc.abstractmethod
    def send(self, message: Message) -> None:
        """Queue a message; messages and layers arrive in the order in which they were queued."""

    @abc.abstractmethod
    def send_layer(self, buffer: Tensor, noted: Noted) -> None:
        """Queue the next layer's buffer of the latest `Pages`; `noted` hears from when until when it was sent."""


@final
class Inbox:
    """What has come in on all lines, oldest first: (rank, message), or the error that ended a line."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, Message] | Exception] = queue.SimpleQueue()

    def put(self, item: tuple[int, Message] | Exception) -> None:
        self._queue.put(item)

    def take(self, timeout_s: int | float) -> tuple[int, Message] | None:
        """The oldest message; None if none comes within `timeout_s`.

        Raises:
            PeerLostError: A line has ended, and everything that came before that has been taken.
        """
        try:
            item = self._queue.get(timeout=timeout_s) if timeout_s else self._queue.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, Exception):
            raise item
        return item


@final
class Channel(Link):
    """The `Link` over `Peers`. It is the only user of the peers' calls to and from `rank`.

    Args:
        rank: The peer.
        inbox: Where its messages go.
        receiver: Where its pages go; None if it sends none.
    """

    def __init__(self, peers: Peers, rank: int, inbox: Inbox, receiver: KVReceiver | None = None) -> None:
        self._peers = peers
        self._rank = rank
        self._inbox = inbox
        self._receiver = receiver
        self._outbox: queue.SimpleQueue[Message | tuple[Tensor, Any, Noted]] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"twophase {name} rank {rank}", daemon=True)
            for work, name in ((self._send_all, "to"), (self._receive_all, "from"))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: Message) -> None:
        self._outbox.put(message)

    def send_layer(self, buffer: Tensor, noted: Noted) -> None:
        ready = torch.cuda.current_stream(buffer.device).record_event() if buffer.is_cuda else None
        self._outbox.put((buffer, ready, noted))

    def close(self) -> None:
        """Wait until both sides have said Bye, or the line has ended, which takes as long as the peers' limit."""
        for thread in self._threads:
            thread.join(self._peers.step_timeout_s + JOIN_S)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            with self._side_stream():
                work()
        except Exception as error:  # PeerLostError; anything else is a bug, and must not leave the engine waiting
            self._inbox.put(error)

    def _side_stream(self) -> AbstractContextManager[Any]:
        device = self._peers.device
        return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()

    # -- the sending thread

    def _send_all(self) -> None:
        while True:
            try:
                item = self._outbox.get(timeout=self._peers.step_timeout_s / HEARTBEATS_PER_LIMIT)
            except queue.Empty:
                self._send_frame(_ALIVE, 0)
                continue
            if isinstance(item, tuple):
                self._send_buffer(*item)
                continue
            body = torch.frombuffer(bytearray(pickle.dumps(item)), dtype=torch.uint8)
            self._send_frame(_MESSAGE, body.numel())
            self._peers.send(body, self._rank, "a message to be taken")
            if isinstance(item, Bye):
                return

    def _send_buffer(self, buffer: Tensor, ready: Any, noted: Noted) -> None:
        if ready is not None:
            torch.cuda.current_stream(buffer.device).wait_event(ready)
        start_s = time.monotonic()
        self._send_frame(_LAYER, buffer.numel())
        self._peers.send(buffer, self._rank, "a layer's pages to be taken")
        noted(start_s, time.monotonic())

    def _send_frame(self, kind: int, num_bytes: int) -> None:
        self._peers.send(torch.tensor([kind, num_bytes]), self._rank, "a sign of life to be taken")

    # -- the receiving thread

    def _receive_all(self) -> None:
        header = torch.empty(2, dtype=torch.int64)
        pages, layer = Pages(()), 0
        while True:
            self._peers.recv(header, self._rank, "a sign of life")
            kind, num_bytes = header.tolist()
            if kind == _LAYER:
                self._receive_layer(pages, layer, num_bytes)
                layer += 1
            elif kind == _MESSAGE:
                body = torch.empty(num_bytes, dtype=torch.uint8)
                self._peers.recv(body, self._rank, "a message")
                message = pickle.loads(body.numpy().tobytes())
                if isinstance(message, Pages):
                    pages, layer = message, 0
                    continue
                self._inbox.put((self._rank, message))
                if isinstance(message, Bye):
                    return

    def _receive_layer(self, pages: Pages, layer: int, num_bytes: int) -> None:
        assert self._receiver is not None
        buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self._peers.device)
        self._peers.recv(buffer, self._rank, "a layer's pages")
        self._receiver.receive(pages, layer, buffer)
        if buffer.is_cuda:  # what uses these pages runs on another stream
            torch.cuda.current_stream(buffer.device).synchronize()
