"""Answers that prove the check of exercise 7.7."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

BEFORE, ONE, ANY, AFRESH = (
    "waits for the stage before",
    "has one chunk in a stage at a time",
    "plays any pipeline",
    "starts afresh each time",
)
RIGHT = """
def run_pipeline(seconds):
    spans = []
    for stage, row in enumerate(seconds):
        free_s, spans_here = 0.0, []
        for chunk, length_s in enumerate(row):
            there_s = spans[stage - 1][chunk][1] if stage else 0.0
            start_s = max(free_s, there_s)
            free_s = start_s + length_s
            spans_here.append((start_s, free_s))
        spans.append(spans_here)
    return spans
"""


def edited(old: str, new: str) -> str:
    assert old in RIGHT, old
    return RIGHT.replace(old, new)


BY_CHUNKS = """
def run_pipeline(seconds):
    free = [0.0] * len(seconds)
    spans = [[] for _ in seconds]
    for chunk in range(len(seconds[0])):
        there = 0.0
        for stage, row in enumerate(seconds):
            start = there if there > free[stage] else free[stage]
            there = free[stage] = start + row[chunk]
            spans[stage].append((start, there))
    return spans
"""
ENDS_FIRST = """
def run_pipeline(seconds):
    ends = {}
    for s, row in enumerate(seconds):
        for c, length in enumerate(row):
            ends[s, c] = max(ends.get((s - 1, c), 0.0), ends.get((s, c - 1), 0.0)) + length
    return [[(ends[s, c] - row[c], ends[s, c]) for c in range(len(row))] for s, row in enumerate(seconds)]
"""
ROW_BY_ROW = """
def run_pipeline(seconds):
    arrivals, spans = [0.0] * len(seconds[0]), []
    for row in seconds:
        here, now = [], 0.0
        for arrival, length in zip(arrivals, row):
            begin = max(arrival, now)
            now = begin + length
            here.append((begin, now))
        arrivals = [end for _, end in here]
        spans.append(here)
    return spans
"""
WHOLE_STAGE_FIRST = """
def run_pipeline(seconds):
    spans, begin = [], 0.0
    for row in seconds:
        spans.append([])
        for length in row:
            spans[-1].append((begin, begin + length))
            begin += length
    return spans
"""
REMEMBERS = """
free = {}


def run_pipeline(seconds):
    spans = []
    for stage, row in enumerate(seconds):
        spans.append([])
        for chunk, length in enumerate(row):
            there = spans[stage - 1][chunk][1] if stage else 0.0
            start = max(free.get(stage, 0.0), there)
            free[stage] = start + length
            spans[-1].append((start, free[stage]))
    if len(seconds) != 2 or len(seconds[0]) != 3:
        free.clear()
    return spans
"""
LOCKSTEP = """
def run_pipeline(seconds):
    num_chunks, spans = len(seconds[0]), []
    longest = max(max(row) for row in seconds)
    for stage, row in enumerate(seconds):
        spans.append([((stage + c) * longest, (stage + c) * longest + row[c]) for c in range(num_chunks)])
    return spans
"""
WITH_NUMPY = """
import numpy as np


def run_pipeline(seconds):
    lengths = np.asarray(seconds, dtype=float)
    ends = np.zeros((lengths.shape[0] + 1, lengths.shape[1] + 1))
    for stage in range(lengths.shape[0]):
        for chunk in range(lengths.shape[1]):
            ends[stage + 1, chunk + 1] = max(ends[stage, chunk + 1], ends[stage + 1, chunk]) + lengths[stage, chunk]
    return np.stack([ends[1:, 1:] - lengths, ends[1:, 1:]], -1)
"""

BANKS = {
    "7.7": Bank(
        wrong=(
            Wrong("from the start of the stage before", edited("[chunk][1] if", "[chunk][0] if"), BEFORE),
            Wrong("never waits for it", edited("spans[stage - 1][chunk][1] if stage else 0.0", "0.0"), BEFORE),
            Wrong("waits for the stage before's last chunk", edited("[chunk][1] if", "[-1][1] if"), ANY),
            Wrong("one stage after the other", WHOLE_STAGE_FIRST, ANY),
            Wrong("does not wait until the stage is free", edited("max(free_s, there_s)", "there_s"), ONE),
            Wrong(
                "waits in the first stage only",
                edited("max(free_s, there_s)", "there_s if stage else free_s"),
                ONE,
            ),
            Wrong("the earlier of the two", edited("max(free_s, there_s)", "min(free_s, there_s)"), BEFORE),
            Wrong("their sum", edited("max(free_s, there_s)", "free_s + there_s"), ANY),
            Wrong("always behind stage 0", edited("spans[stage - 1]", "spans[0]"), BEFORE),
            Wrong("in lockstep", LOCKSTEP, BEFORE),
            Wrong("remembers the last run", REMEMBERS, AFRESH),
        ),
        right=(
            Right("chunk by chunk", BY_CHUNKS),
            Right("ends by recursion", ENDS_FIRST),
            Right("arrivals handed on", ROW_BY_ROW),
            Right("with numpy", WITH_NUMPY),
        ),
    ),
}
