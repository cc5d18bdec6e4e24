"""Answers that prove the checks of exercise 4.2."""

from tests.labs.scheduling.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

ALONE, FREE, JOIN, SLOTS = (
    "runs one request",
    "fills a place as soon as it is free",
    "lets requests join while others run",
    "never uses more places than there are",
)
HEAP = """
import heapq


def iteration_level(arrivals, lengths, num_places):
    free = [0] * num_places
    spans, started = [], 0
    for arrival, length in zip(arrivals, lengths):
        started = max(arrival, started, heapq.heappop(free))
        spans.append((started, started + length))
        heapq.heappush(free, started + length)
    return spans
"""
WAITS_FOR_ALL = """
def iteration_level(arrivals, lengths, num_places):
    spans, now = [], 0
    while len(spans) < len(lengths):
        now = max(now, arrivals[len(spans)])
        there = [l for a, l in zip(arrivals[len(spans):], lengths[len(spans):]) if a <= now][:num_places]
        spans += [(now, now + l) for l in there]
        now += max(there)
    return spans
"""

BANKS = {
    "4.2": Bank(
        wrong=(
            Wrong("request-level after all", WAITS_FOR_ALL, FREE),
            Wrong("joins an empty batch only", {1: "0 if tokens_left else min(num_free, num_there)"}, FREE),
            Wrong("one slot too many", {1: "min(num_free + 1, num_there)"}, FREE),
            Wrong("slots without end", {1: "num_there"}, FREE),
            Wrong("before they come", {1: "min(num_free, len(waiting))"}, ALONE),
            Wrong(
                "an iteration late", {1: "min(num_free, sum(arrivals[request] < now for request in waiting))"}, ALONE
            ),
            Wrong("ends an iteration early", {4: "(first[request], now - 1)"}, ALONE),
            Wrong("the last token is lost", {3: "tokens_left[request] == 1"}, ALONE),
            Wrong("starts when it came", {4: "(arrivals[request], now)"}, FREE),
            Wrong("the length of another", {2: "lengths[0]"}, FREE),
            Wrong("one newcomer an iteration", {1: "min(1, num_free, num_there)"}, FREE),
        ),
        right=(
            Right("a heap of free slots", HEAP),
            Right("the smaller by comparing", {1: "num_there if num_there < num_free else num_free"}),
            Right("computes the first from the end", {4: "(now - lengths[request], now)"}),
        ),
    ),
}

BANKS = opened_all(BANKS)
