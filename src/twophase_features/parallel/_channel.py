"""A line to one peer: messages go out on a thread of their own, and come in on another.

The thread that computes never waits for the network: it puts what it has to say into a queue. That is what overlaps a
transfer with the next layers.

A message is a header, int64 [MAX_PARTS], and parts of as many bytes: the pickled message, and its arrays as they are.
A side that has nothing to say sends an empty message from time to time; one that is silent for longer than the peers'
limit is lost. So a process that was stopped is noticed, and one that only computes for long is not taken for it.
"""

import pickle
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from twophase_features.parallel._protocol import Bye, Message, Pages
from twophase_features.parallel.peers import Peers
from twophase_features.parallel.remote_tier import RemoteTier

HEARTBEATS_PER_LIMIT = 4
MAX_PARTS = 5  # a message, and K, V and their scales
JOIN_S = 2.0

Noted = Callable[[float, float], None]
Send = Callable[..., None]  # `Channel.send`, or a stand-in


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
class Channel:
    """One end of a line. It is the only user of the peers' calls to and from `rank`.

    Args:
        rank: The peer.
        inbox: Where its messages go.
        tier: Where its pages go; None if it sends none.
    """

    def __init__(self, peers: Peers, rank: int, inbox: Inbox, tier: RemoteTier | None = None) -> None:
        self._peers = peers
        self._rank = rank
        self._inbox = inbox
        self._tier = tier
        self._outbox: queue.SimpleQueue[tuple[Message | Callable[[], Message], Noted, Any]] = queue.SimpleQueue()
        self._stream = torch.cuda.Stream(peers.device) if peers.device.type == "cuda" else None
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"twophase {name} rank {rank}", daemon=True)
            for work, name in ((self._send_all, "to"), (self._receive_all, "from"))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: Message | Callable[[], Message], noted: Noted = lambda start_s, end_s: None) -> None:
        """Queue a message, or a function that is called for it when those before it have been sent.

        Args:
            noted: Hears from when until when the message was sent.
        """
        has_pages = self._stream is not None and isinstance(message, Pages)
        self._outbox.put((message, noted, torch.cuda.current_stream().record_event() if has_pages else None))

    def close(self) -> None:
        """Wait until both sides have said Bye, or the line has ended, which takes as long as the peers' limit."""
        for thread in self._threads:
            thread.join(self._peers.step_timeout_s + JOIN_S)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # PeerLostError; anything else is a bug, and must not leave the engine waiting
            self._inbox.put(error)

    def _send_all(self) -> None:
        while True:
            try:
                message, noted, is_packed = self._outbox.get(timeout=self._peers.step_timeout_s / HEARTBEATS_PER_LIMIT)
            except queue.Empty:
                self._send_parts([])
                continue
            start_s = time.monotonic()
            message = message() if callable(message) else message
            if isinstance(message, Pages):
                message = self._on_the_host(message, is_packed)
            arrays: list[pickle.PickleBuffer] = []
            body = pickle.dumps(message, protocol=5, buffer_callback=arrays.append)
            self._send_parts([bytearray(body), *(array.raw() for array in arrays)])
            noted(start_s, time.monotonic())
            if isinstance(message, Bye):
                return

    def _on_the_host(self, pages: Pages, is_packed: Any) -> Pages:
        """On a GPU pages are copied on a stream of their own, which waits for them and not for what was queued after
        them."""
        if self._stream is not None:
            self._stream.wait_event(is_packed)
        with torch.cuda.stream(self._stream):
            return replace(pages, parts=[part.cpu().numpy() for part in pages.parts])

    def _send_parts(self, parts: Sequence[bytearray | memoryview]) -> None:
        header = torch.zeros(MAX_PARTS, dtype=torch.int64)
        header[: len(parts)] = torch.tensor([len(part) for part in parts])
        self._peers.send(header, self._rank, "a sign of life to be taken")
        for part in parts:
            self._peers.send(torch.frombuffer(part, dtype=torch.uint8), self._rank, "a message to be taken")

    def _receive_all(self) -> None:
        header = torch.empty(MAX_PARTS, dtype=torch.int64)
        message: Message | None = None
        while not isinstance(message, Bye):
            self._peers.recv(header, self._rank, "a sign of life")
            parts = [torch.empty(num_bytes, dtype=torch.uint8) for num_bytes in header.tolist() if num_bytes]
            if not parts:
                continue
            for part in parts:
                self._peers.recv(part, self._rank, "a message")
            body, *arrays = (part.numpy() for part in parts)
            message = pickle.loads(body.data, buffers=arrays)
            if isinstance(message, Pages):
                assert self._tier is not None
                self._tier.receive(message.keys, message.layer, list(map(torch.from_numpy, message.parts)))
            else:
                self._inbox.put((self._rank, message))
