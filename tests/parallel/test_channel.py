"""A line between two ends in one process: messages arrive in order, and pages bit for bit."""

import threading

import pytest
import torch

from tests.parallel.thread_peers import ThreadPeers, lines_between
from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.core.plan import BlockKey
from twophase_features.parallel._channel import Channel, Inbox
from twophase_features.parallel._protocol import Bye, Done, Pages, Transfer
from twophase_features.parallel.pages import pack_layer
from twophase_features.parallel.remote_tier import RemoteTier

KEYS = (BlockKey(b"a" * 16, b"1"), BlockKey(b"b" * 16, b"2"))


def filled_cache(kv_format):
    cache = KVCache(KVCacheSpec(2, 3, 16, 4, torch.float32, kv_format), 8, torch.device("cpu"))
    for tensor in cache.storage:
        tensor.view(torch.uint8).random_(0, 100)
    return cache


@pytest.fixture
def ends():
    """Makes a channel for each of two ranks; they say Bye to each other at the end."""
    lines, made = lines_between(2), []

    def make(step_timeout_s=20.0):
        for rank in range(2):
            peers = ThreadPeers(rank, lines, threading.Barrier(2))
            peers.step_timeout_s = step_timeout_s
            inbox = Inbox()
            made.append((Channel(peers, 1 - rank, inbox), inbox))
        return made

    yield make
    for channel, _ in made:
        channel.send(Bye())
    for channel, _ in made:
        channel.close()
        assert not any(thread.is_alive() for thread in channel._threads)


@pytest.mark.parametrize("kv_format", ["none", "int8"])
def test_pages_come_bit_for_bit_before_the_message_after_them(ends, kv_format):
    source, target = filled_cache(kv_format), filled_cache(kv_format)
    tier = RemoteTier(target)
    tier.expect(KEYS)
    (_, inbox), (worker, _) = ends()
    transfer = Transfer(0.0)
    for layer in range(2):
        parts = pack_layer(source, layer, [5, 2])
        worker.send(Pages(KEYS, layer, parts), transfer.sent)
    worker.send(Done("a", transfers=(transfer,)))
    for _ in range(2):
        tier.receive(next(inbox.messages(20.0)))
    done = next(inbox.messages(20.0))
    assert len(done.transfers[0].sent) == 2, "a message is pickled when the messages before it have been sent"
    assert tier.match(KEYS) == 2
    assert tier.load(KEYS, [0, 7]) == 2
    for ours, theirs in zip(target.storage, source.storage, strict=True):
        assert torch.equal(ours[:, [0, 7]], theirs[:, [5, 2]])
    assert all(end_s > start_s for start_s, end_s in done.transfers[0].sent)


def test_silence_is_filled_with_signs_of_life(ends):
    """An end that has nothing to say sends empty messages, which nobody hears, four within the limit."""
    _, (worker, inbox) = ends(step_timeout_s=0.08)
    heard, receive = threading.Semaphore(0), worker._peers.recv_object

    def counted(src, what):
        value = receive(src, what)
        heard.release()
        return value

    worker._peers.recv_object = counted
    assert all(heard.acquire(timeout=20.0) for _ in range(5))
    assert not list(inbox.messages(0.0))
