"""Answers that prove the check of exercise 8.8."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

HEALTHY, POOL, BATCHING, NEEDLES, FORMAT, LINK, WINDOW, ODD, OTHER_GPU, CAUSE, ALONE, NO_JSON = (
    "knows a healthy hour",
    "names a full pool",
    "names prompts that hold up decodes",
    "names lost needles",
    "names invalid JSON",
    "names a slow link",
    "looks at the window, not at all that ever was",
    "is not misled by one odd sample",
    "compares with the healthy hour of that service",
    "names the cause, not what follows from it",
    "leaves the samples alone",
    "copes with a minute without JSON",
)
SOLUTION = """
def diagnose(window, healthy):
    def share(samples, part, whole):
        rose = samples[-1][whole] - samples[0][whole]
        return (samples[-1][part] - samples[0][part]) / rose if rose else 0.0

    def usual(samples, name):
        known = sorted(sample[name] for sample in samples if sample[name] is not None)
        return known[len(known) // 2] if known else 0.0

    invalid, found = ("json_invalid_total", "json_total"), ("long_needles_found_total", "long_needles_total")
    if share(window, *invalid) > share(healthy, *invalid) + 0.2:
        return "format"
    if share(window, *found) < share(healthy, *found) - 0.15:
        return "retrieval"
    if usual(window, "transfer_p99_s") > 3 * usual(healthy, "transfer_p99_s"):
        return "transfer"
    if usual(window, "kv_usage") > max(0.85, usual(healthy, "kv_usage")):
        return "kv"
    if usual(window, "itl_p99_s") > 1.5 * usual(healthy, "itl_p99_s"):
        return "batching"
    return "healthy"
"""


def edited(*pairs: tuple[str, str]) -> str:
    text = SOLUTION
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


KV_TEST = """    if usual(window, "kv_usage") > max(0.85, usual(healthy, "kv_usage")):
        return "kv"
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

BANKS = {
    "8.8": Bank(
        wrong=(
            Wrong("always healthy", "def diagnose(window, healthy):\n    return 'healthy'\n", POOL),
            Wrong("any lost needle", edited(("share(healthy, *found) - 0.15", "1.0")), HEALTHY),
            Wrong("any transfer is slow", edited(("3 * usual(healthy", "0.5 * usual(healthy")), HEALTHY),
            Wrong("divides by the number of JSON answers", edited(("/ rose if rose else 0.0", "/ rose")), NO_JSON),
            Wrong("no JSON answer is no valid one", edited(("if rose else 0.0", "if rose else 1.0")), NO_JSON),
            Wrong("no pool", edited((KV_TEST, "")), POOL),
            Wrong(
                "a pool is full where something was preempted often",
                edited(
                    (
                        'usual(window, "kv_usage") > max(0.85, usual(healthy, "kv_usage"))',
                        'window[-1]["preemptions_total"] - window[0]["preemptions_total"] > 60',
                    )
                ),
                POOL,
            ),
            Wrong("no batching", edited(('return "batching"', 'return "healthy"')), BATCHING),
            Wrong(
                "batching by the median gap of TTFT",
                edited(("itl_p99_s", "ttft_p99_s"), ("1.5 * usual", "4 * usual")),
                BATCHING,
            ),
            Wrong("short needles", edited(("long_needles", "short_needles")), NEEDLES),
            Wrong("latency alone", edited(('return "retrieval"', "pass")), NEEDLES),
            Wrong("JSON valid enough", edited(("*invalid) + 0.2", "*invalid) + 0.9")), FORMAT),
            Wrong(
                "JSON by the number of tokens",
                edited(('return "format"', "pass")),
                FORMAT,
            ),
            Wrong("no link", edited(('return "transfer"', 'return "batching"')), LINK),
            Wrong("a very slow link alone", edited(("3 * usual(healthy", "60 * usual(healthy")), LINK),
            Wrong(
                "counters since the start",
                edited(
                    ("samples[-1][whole] - samples[0][whole]", "samples[-1][whole]"),
                    ("(samples[-1][part] - samples[0][part])", "samples[-1][part]"),
                ),
                WINDOW,
            ),
            Wrong(
                "the largest sample",
                edited(("known[len(known) // 2]", "known[-1]"), ("1.5 *", "2.5 *"), ("3 * usual", "6 * usual")),
                ODD,
            ),
            Wrong(
                "means",
                edited(("known[len(known) // 2]", "sum(known) / len(known)")),
                ODD,
            ),
            Wrong(
                "a fixed number of milliseconds",
                edited(('1.5 * usual(healthy, "itl_p99_s")', "0.38")),
                OTHER_GPU,
            ),
            Wrong(
                "symptoms first",
                edited((KV_TEST, ""), ("    if share(window, *invalid)", KV_TEST + "    if share(window, *invalid)")),
                CAUSE,
            ),
            Wrong(
                "writes into the samples",
                edited(("    def share", "    for sample in window:\n        sample['seen'] = True\n\n    def share")),
                ALONE,
            ),
        ),
        right=(
            Right("medians, evidence of the step", BY_THE_STEP),
            Right("scores, causes first", BY_SCORES),
        ),
    ),
}
