"""A line to one peer: messages go out on a thread of their own, and come in on another.

The thread that computes never waits for the network: it puts its messages into a queue. So a transfer overlaps with
the next layers.

A side that has nothing to say sends None from time to time; a side that is silent for longer than the peers' limit is
lost. So a process that was stopped is noticed, and a process that computes for long is not taken for a stopped one.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, final

import torch

from twophase_features.parallel._protocol import Bye, Message, Pages
from twophase_features.parallel.peers import Peers

HEARTBEATS_PER_LIMIT = 4
JOIN_S = 2.0

Send = Callable[..., None]  # `Channel.send`, or a stand-in


@final
class Inbox:
    """The messages that have come in on all lines, oldest first, or the error that ended a line."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()
        self.put = self._queue.put

    def messages(self, timeout_s: int | float) -> Iterator[Message]:
        """All that have come, or the first that comes within `timeout_s`. Raises PeerLostError if a line has ended, and
        everything that came before that has been taken."""
        with suppress(queue.Empty):
            item = self._queue.get(timeout=timeout_s) if timeout_s else self._queue.get_nowait()
            while not isinstance(item, Exception):
                yield item
                item = self._queue.get_nowait()
            raise item


@final
class Channel:
    """One end of a line. It is the only user of the peers' calls to and from `rank`.

    Args:
        rank: The peer.
        inbox: Where its messages go.
    """

    def __init__(self, peers: Peers, rank: int, inbox: Inbox) -> None:
        self._peers, self._rank, self._inbox = peers, rank, inbox
        self._outbox: queue.SimpleQueue[tuple[Message, list[tuple[float, float]] | None, Any]] = queue.SimpleQueue()
        self._stream = torch.cuda.Stream(peers.device) if peers.device.type == "cuda" else None
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"twophase {name} rank {rank}", daemon=True)
            for work, name in ((self._send_all, "to"), (self._receive_all, "from"))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: Message, times: list[tuple[float, float]] | None = None) -> None:
        """Queue a message. It is pickled when the messages before it have been sent.

        Args:
            times: Gets from when until when the message was sent.
        """
        has_pages = self._stream is not None and isinstance(message, Pages)
        self._outbox.put((message, times, torch.cuda.current_stream().record_event() if has_pages else None))

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
        message: Message | None = None
        while not isinstance(message, Bye):
            try:
                message, times, is_packed = self._outbox.get(timeout=self._peers.step_timeout_s / HEARTBEATS_PER_LIMIT)
            except queue.Empty:
                self._peers.send_object(None, self._rank, "a sign of life to be taken")
                continue
            start_s = time.monotonic()
            sent = self._on_the_host(message, is_packed) if isinstance(message, Pages) else message
            self._peers.send_object(sent, self._rank, "a message to be taken")
            if times is not None:
                times.append((start_s, time.monotonic()))

    def _on_the_host(self, pages: Pages, is_packed: Any) -> Pages:
        """On a GPU pages are copied on a stream of their own, which waits for them and not for work that was queued
        after them."""
        if self._stream is not None:
            self._stream.wait_event(is_packed)
        with torch.cuda.stream(self._stream):
            return replace(pages, parts=[part.cpu().numpy() for part in pages.parts])

    def _receive_all(self) -> None:
        message: Message | None = None
        while not isinstance(message, Bye):
            message = self._peers.recv_object(self._rank, "a message, or a sign of life")
            if isinstance(message, Pages):
                parts = [torch.from_numpy(part) for part in message.parts]
                message = replace(message, parts=[part.pin_memory() for part in parts] if self._stream else parts)
            if message is not None:
                self._inbox.put(message)
