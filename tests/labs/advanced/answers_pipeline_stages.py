"""Answers that prove the check of exercise 5.24."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

BEFORE, ONE, ANY, EQUAL, SHARE = (
    "waits for the stage before",
    "has one chunk in a stage at a time",
    "plays any pipeline",
    "finds (p - 1) / (m + p - 1) for equal chunks",
    "finds the share of any timetable",
)
BUBBLE = """

def bubble_share(spans):
    makespan = max(end for row in spans for _, end in row)
    worked = sum(end - start for row in spans for start, end in row)
    return 1 - worked / (len(spans) * makespan)
"""
BY_CHUNKS = (
    """
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
    + BUBBLE
)
WHOLE_STAGE_FIRST = (
    """
def run_pipeline(seconds):
    spans, begin = [], 0.0
    for row in seconds:
        spans.append([])
        for length in row:
            spans[-1].append((begin, begin + length))
            begin += length
    return spans
"""
    + BUBBLE
)

BANKS = {
    "5.24": Bank(
        wrong=(
            Wrong("from the start of the stage before", {1: "spans[stage - 1][chunk][0] if stage else 0.0"}, BEFORE),
            Wrong("never waits for it", {1: "0.0"}, BEFORE),
            Wrong("the stage before's last chunk", {1: "spans[stage - 1][-1][1] if stage else 0.0"}, ANY),
            Wrong("one stage after the other", WHOLE_STAGE_FIRST, ANY),
            Wrong(
                "the next chunk of the stage before",
                {1: "spans[stage - 1][min(chunk + 1, len(row) - 1)][1] if stage else 0.0"},
                ANY,
            ),
            Wrong("does not wait for the stage to be free", {2: "there"}, ONE),
            Wrong("the earlier of the two", {2: "min(free, there)"}, BEFORE),
            Wrong("their sum", {2: "free + there"}, ANY),
            Wrong("the first stage's end", {3: "spans[0][-1][1]"}, EQUAL),
            Wrong("the share that is worked", {5: "worked / (len(spans) * makespan)"}, EQUAL),
            Wrong("the idle time of one stage", {5: "1 - worked / makespan"}, EQUAL),
            Wrong("from the formula", {5: "(len(spans) - 1) / (len(spans[0]) + len(spans) - 1)"}, SHARE),
            Wrong("idle over worked", {5: "len(spans) * makespan / worked - 1"}, EQUAL),
            Wrong("the stage's own span counts as worked", {4: "sum(row[-1][1] - row[0][0] for row in spans)"}, SHARE),
        ),
        right=(
            Right("chunk by chunk", BY_CHUNKS),
            Right("idle counted", {5: "(len(spans) * makespan - worked) / (makespan * len(spans))"}),
            Right("the last stage's end", {3: "spans[-1][-1][1]"}),
        ),
    ),
}
