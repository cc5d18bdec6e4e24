"""Answers that prove the check of exercise 4.2."""

from twophase_labs.machine.bank import right, wrong

ALONE, FREE, JOIN = (
    "runs one request",
    "fills a batch slot as soon as it is free",
    "lets requests join while others run",
)

WAITS_FOR_ALL = """
def iteration_level(arrivals, lengths, max_num_seqs):
    spans, now = [], 0
    while len(spans) < len(lengths):
        now = max(now, arrivals[len(spans)])
        there = [l for a, l in zip(arrivals[len(spans):], lengths[len(spans):]) if a <= now][:max_num_seqs]
        spans += [(now, now + l) for l in there]
        now += max(there)
    return spans
"""
AN_IDLE_CLOCK_STANDS = """
def iteration_level(arrivals, lengths, max_num_seqs):
    waiting = deque(range(len(lengths)))
    tokens_left = {}
    first, spans, now = {}, {}, 0
    while waiting or tokens_left:
        num_there = sum(arrivals[request] <= now for request in list(waiting)[:16])
        num_free = max_num_seqs - len(tokens_left)
        for _ in range(min(num_free, num_there)):
            request = waiting.popleft()
            tokens_left[request] = lengths[request]
            first[request] = now
        now += 1
        for request in list(tokens_left):
            tokens_left[request] -= 1
            if tokens_left[request] == 0:
                del tokens_left[request]
                spans[request] = (first[request], now)
    return [spans[request] for request in range(len(lengths))]
"""
HEAP = """
import heapq

def iteration_level(arrivals, lengths, max_num_seqs):
    free = [0] * max_num_seqs
    spans, started = [], 0
    for arrival, length in zip(arrivals, lengths):
        started = max(arrival, started, heapq.heappop(free))
        spans.append((started, started + length))
        heapq.heappush(free, started + length)
    return spans
"""
COMPUTES_THE_FIRST_FROM = """
def iteration_level(arrivals, lengths, max_num_seqs):
    waiting = deque(range(len(lengths)))
    tokens_left = {}
    first, spans, now = {}, {}, 0
    while waiting or tokens_left:
        num_there = sum(arrivals[request] <= now for request in waiting)
        num_free = max_num_seqs - len(tokens_left)
        for _ in range(min(num_free, num_there)):
            request = waiting.popleft()
            tokens_left[request] = lengths[request]
            first[request] = now
        now += 1
        for request in list(tokens_left):
            tokens_left[request] -= 1
            if tokens_left[request] == 0:
                del tokens_left[request]
                spans[request] = (now - lengths[request], now)
    return [spans[request] for request in range(len(lengths))]
"""

# fmt: off
BANKS = {
    "4.2": (
        wrong("the last token is lost", "left[request] == 0", "left[request] == 1", by=ALONE),
        wrong("the length of another", "lengths[request], now", "lengths[0], now", by=FREE),
        wrong("slots without end", " and len(left) < max_num_seqs", "", by=FREE),
        wrong("request-level after all", WAITS_FOR_ALL, by=FREE),
        wrong("an idle clock stands still", AN_IDLE_CLOCK_STANDS, by=JOIN),
        right("a heap of free slots", HEAP),
        right("computes the first from the end", COMPUTES_THE_FIRST_FROM),
    ),
}
