"""Answers that prove the check of exercise 8.7."""

from twophase_labs.machine.bank import right, wrong

HEALTHY, POOL, BATCHING = "knows a healthy hour", "names a full pool", "names prompts that hold up decodes"
NEEDLES, FORMAT, LINK = "names lost needles", "names invalid JSON", "names a slow link"
WINDOW, NO_JSON = "looks at the window, not at all that ever was", "copes with a minute without JSON"
ODD, OTHER_GPU = "is not misled by one odd sample", "compares with the healthy hour of that service"
CAUSE, ALONE = "names the cause, not what follows from it", "leaves the samples alone"

BY_SCORES = """
def diagnose(window, healthy):
    def gauge(samples, name):
        known = sorted(s[name] for s in samples if s[name] is not None)
        return sum(known[len(known) // 4 : -(len(known) // 4) or None]) / max(1, len(known[len(known) // 4 : -(len(known) // 4) or None]))

    def part(samples, one, of):
        total = samples[-1][of] - samples[0][of]
        return (samples[-1][one] - samples[0][one]) / total if total else 0

    scores = [
        ("format", part(window, "json_invalid_total", "json_total") / 0.22),
        ("retrieval", (1 - part(window, "long_needles_found_total", "long_needles_total")) / 0.2),
        ("transfer", gauge(window, "transfer_p99_s") / (4 * gauge(healthy, "transfer_p99_s") or 1)),
        ("batching", gauge(window, "itl_p99_s") / (1.6 * gauge(healthy, "itl_p99_s"))),
        ("kv", gauge(window, "kv_usage") / 0.85),
    ]
    return next((name for name, score in scores if score > 1), "healthy")
"""
BY_THE_STEP = """
from statistics import median

def diagnose(window, healthy):
    def rose(samples, name):
        return samples[-1][name] - samples[0][name]

    def middle(samples, name):
        known = [s[name] for s in samples if s[name] is not None]
        return median(known) if known else None

    if rose(window, "json_total") and rose(window, "json_invalid_total") / rose(window, "json_total") > 0.22:
        return "format"
    if rose(window, "long_needles_found_total") < 0.8 * rose(window, "long_needles_total"):
        return "retrieval"
    slow, normal = middle(window, "transfer_p99_s"), middle(healthy, "transfer_p99_s")
    if slow is not None and normal is not None and slow > 4 * normal:
        return "transfer"
    if middle(window, "largest_prefill_tokens") > 2 * middle(healthy, "largest_prefill_tokens"):
        return "batching"
    if middle(window, "kv_usage") > 0.8 and middle(window, "num_waiting") > 5 + middle(healthy, "num_waiting"):
        return "kv"
    return "healthy"
"""

# fmt: off
BANKS = {
    "8.7": (
        wrong("any lost needle", "share(healthy, *found) - 0.15", "1.0", by=HEALTHY),
        wrong("always healthy", {1: "return 'healthy'"}, by=POOL),
        wrong("no batching", '"batching"', "'healthy'", by=BATCHING),
        wrong("short needles", '"long_needles_found_total", "long_needles_total"',
              "'short_needles_found_total', 'short_needles_total'", by=NEEDLES),
        wrong("JSON valid enough", "share(healthy, *invalid) + 0.2", "share(healthy, *invalid) + 0.9", by=FORMAT),
        wrong("no link", '"transfer"', "'batching'", by=LINK),
        wrong("counters since the start", "[whole] - samples[0]", "", "[part] - samples[0]", "", by=WINDOW),
        wrong("divides by the number of JSON answers",
              "(samples[-1][part] - samples[0][part]) / rose if rose else 0.0",
              "(samples[-1][part] - samples[0][part]) / rose", by=NO_JSON),
        wrong("means", "known[len(known) // 2]", "sum(known) / len(known)", by=ODD),
        wrong("a fixed number of milliseconds", '1.5 * usual(healthy, "itl_p99_s")', "0.38", by=OTHER_GPU),
        wrong("symptoms first", "if share(window, *invalid)",
              'if usual(window, "kv_usage") > max(0.85, usual(healthy, "kv_usage")):\n        return "kv"\n    if share(window, *invalid)',
              by=CAUSE),
        wrong("writes into the samples", "def share",
              "for sample in window:\n        sample['seen'] = True\n    def share", by=ALONE),
        right("scores, causes first", BY_SCORES),
        right("medians, evidence of the step", BY_THE_STEP),
    ),
}
