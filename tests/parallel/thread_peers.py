"""Ranks in threads of one process: what they say to each other goes over queues, one for each pair of them."""

import faulthandler
import pickle
import queue
import threading
from contextlib import contextmanager

import torch

from twophase_features.parallel.peers import Peers


def lines_between(world_size: int) -> dict:
    return {(src, dst): queue.Queue() for src in range(world_size) for dst in range(world_size)}


class ThreadPeers(Peers):
    """What a `TensorParallelGroup`, its runner and its experts need of `Peers`.

    Args:
        turn: Held by the rank that runs, so that ranks run one at a time, as if each had a process of its own: what they
            share here (a compiler's state, the types' checks) need not stand two threads. None: they run at once.
    """

    def __init__(self, rank: int, lines: dict, barrier: threading.Barrier, turn=None) -> None:
        self.rank, self.world_size, self.device = rank, 1 + max(dst for _, dst in lines), torch.device("cpu")
        self.traffic = {}
        self._lines, self._barrier, self._turn = lines, barrier, turn

    @contextmanager
    def _others_turn(self):
        if self._turn is not None:
            self._turn.release()
        try:
            yield
        finally:
            if self._turn is not None:
                self._turn.acquire()

    def gather(self, value, what):
        with self._others_turn():
            self._barrier.wait()
        for dst in range(self.world_size):
            self.send_object(value, dst, what)
        return [self._from(src) for src in range(self.world_size)]

    def all_reduce(self, tensor, what):
        return tensor.copy_(sum(self._swap([tensor] * self.world_size)))

    def all_gather(self, whole, part, what):
        whole.copy_(torch.cat(self._swap([part] * self.world_size)))

    def all_to_all(self, received, sent, what, num_received=None, num_sent=None):
        parts = self._swap(sent.chunk(self.world_size) if num_sent is None else sent.split(num_sent))
        assert num_received in (None, [len(part) for part in parts])
        received.copy_(torch.cat(parts))

    def _swap(self, parts):
        for dst, part in enumerate(parts):
            self._lines[self.rank, dst].put(part.clone())
        return [self._from(src) for src in range(self.world_size)]

    def _from(self, src):
        try:
            with self._others_turn():
                said = self._lines[src, self.rank].get(timeout=60)
        except queue.Empty:
            faulthandler.dump_traceback(all_threads=True)  # where the other rank is
            raise
        if isinstance(said, BaseException):
            raise AssertionError(f"rank {src} failed: {said!r}") from said
        return said

    def send(self, tensor, dst, what):
        self._lines[self.rank, dst].put(tensor.clone())

    def recv(self, tensor, src, what):
        tensor.copy_(self._from(src))

    def send_object(self, value, dst, what):
        self._lines[self.rank, dst].put(pickle.loads(pickle.dumps(value)))

    def recv_object(self, src, what):
        return self._from(src)

    call, wait_for_call = send_object, recv_object

    def check(self):
        pass

    def leave(self, why):
        self._barrier.abort()

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass
