"""Answers that prove the checks of exercises 4.2 and 4.4."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

ONE_BATCH, LONGEST, THERE, TOKENS = (
    "runs one batch",
    "waits for the longest of a batch",
    "takes those who are there",
    "counts tokens over slots",
)
ALONE, FREE, JOIN, SLOTS = (
    "runs one request",
    "fills a slot as soon as it is free",
    "lets requests join while others run",
    "never uses more slots than there are",
)
USE = """
def slot_use(spans, num_slots):
    start, stop = min(first for first, _ in spans), max(end for _, end in spans)
    return sum(end - first for first, end in spans) / (num_slots * (stop - start))
"""
BY_INDEX = f"""
def static_batching(arrivals, lengths, num_slots):
    spans, now = [], 0
    while len(spans) < len(lengths):
        first = len(spans)
        now = max(now, arrivals[first])
        last = first
        while last < len(lengths) and last - first < num_slots and arrivals[last] <= now:
            last += 1
        spans += [(now, now + length) for length in lengths[first:last]]
        now = max(end for _, end in spans)
    return spans

{USE}
"""
FULL_BATCHES = f"""
def static_batching(arrivals, lengths, num_slots):
    spans, now = [], 0
    for first in range(0, len(lengths), num_slots):
        batch = lengths[first : first + num_slots]
        now = max(now, arrivals[min(first + num_slots, len(lengths)) - 1])
        spans += [(now, now + length) for length in batch]
        now += max(batch)
    return spans

{USE}
"""
HEAP = """
import heapq


def iteration_level(arrivals, lengths, num_slots):
    free = [0] * num_slots
    spans, started = [], 0
    for arrival, length in zip(arrivals, lengths):
        started = max(arrival, started, heapq.heappop(free))
        spans.append((started, started + length))
        heapq.heappush(free, started + length)
    return spans
"""
WAITS_FOR_ALL = """
def iteration_level(arrivals, lengths, num_slots):
    spans, now = [], 0
    while len(spans) < len(lengths):
        now = max(now, arrivals[len(spans)])
        there = [l for a, l in zip(arrivals[len(spans):], lengths[len(spans):]) if a <= now][:num_slots]
        spans += [(now, now + l) for l in there]
        now += max(there)
    return spans
"""

BANKS = {
    "4.2": Bank(
        wrong=(
            Wrong("everyone waits for the longest", {2: "[(now, now + max(batch)) for length in batch]"}, ONE_BATCH),
            Wrong("starts at 0", {2: "[(0, length) for length in batch]"}, LONGEST),
            Wrong("the next batch after the shortest", {3: "min(batch)"}, LONGEST),
            Wrong("the next batch after the mean", {3: "sum(batch) // len(batch)"}, LONGEST),
            Wrong("one after another", {3: "sum(batch)"}, LONGEST),
            Wrong("batches without end", {1: "num_there"}, LONGEST),
            Wrong("one too many", {1: "min(num_slots + 1, num_there)"}, LONGEST),
            Wrong("takes whoever will come", {1: "min(num_slots, len(queue))"}, THERE),
            Wrong("waits for company", FULL_BATCHES, THERE),
            Wrong("one at a time", {1: "1"}, ONE_BATCH),
            Wrong("counts requests", {4: "len(spans)"}, TOKENS),
            Wrong("counts from the clock's start", {5: "num_slots * stop"}, TOKENS),
            Wrong("forgets the slots", {5: "stop - start"}, TOKENS),
        ),
        right=(
            Right("by index", BY_INDEX),
            Right("the wait as a maximum of ends", {3: "max(end for _, end in spans) - now"}),
        ),
    ),
    "4.4": Bank(
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
