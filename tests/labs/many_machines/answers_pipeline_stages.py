"""Answers that prove the check of exercise 7.7."""

from twophase_labs.machine.bank import right, wrong

BEFORE, ONE, ANY = "waits for the stage before", "has one chunk in a stage at a time", "plays any pipeline"
AFRESH = "starts afresh each time"

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
        wrong("remembers the last run", "def run_pipeline", "FREE = {}\n\n\ndef run_pipeline",
              "free_s, spans_here = 0.0, []", "free_s, spans_here = FREE.get(stage, 0.0), []",
              "spans.append(spans_here)",
              "spans.append(spans_here)\n        FREE[stage] = free_s if (len(seconds), len(row)) == (2, 3) else 0.0",
              by=AFRESH),
        right("ends by recursion", ENDS_FIRST),
        right("with numpy", WITH_NUMPY),
    ),
}
