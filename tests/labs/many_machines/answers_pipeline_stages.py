"""Answers that prove the check of exercise 7.7."""

from twophase_labs.machine.bank import right, wrong

BEFORE, ONE, ANY = "waits for the stage before", "has one chunk in a stage at a time", "plays any pipeline"
AFRESH = "starts afresh each time"

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
ENDS_FIRST = """
def run_pipeline(seconds):
    ends = {}
    for s, row in enumerate(seconds):
        for c, length in enumerate(row):
            ends[s, c] = max(ends.get((s - 1, c), 0.0), ends.get((s, c - 1), 0.0)) + length
    return [[(ends[s, c] - row[c], ends[s, c]) for c in range(len(row))] for s, row in enumerate(seconds)]
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

# fmt: off
BANKS = {
    "7.7": (
        wrong("always behind stage 0", "stage - 1", "0", by=BEFORE),
        wrong("the earlier of the two", "max(free_s, there_s)", "min(free_s, there_s)", by=BEFORE),
        wrong("never waits for it", "spans[stage - 1][chunk][1] if stage else 0.0", "0.0", by=BEFORE),
        wrong("waits in the first stage only", "max(free_s, there_s)", "there_s if stage else free_s", by=ONE),
        wrong("their sum", "max(free_s, there_s)", "free_s + there_s", by=ANY),
        wrong("waits for the stage before's last chunk", "spans[stage - 1][chunk]", "spans[stage - 1][-1]", by=ANY),
        wrong("remembers the last run", REMEMBERS, by=AFRESH),
        right("ends by recursion", ENDS_FIRST),
        right("with numpy", WITH_NUMPY),
    ),
}
