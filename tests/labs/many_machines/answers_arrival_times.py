"""Answers that prove the check of exercise 7.2."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

ONE, SOON, LINK, LATE, ANY = (
    "computes, sends, and waits for the latency",
    "sends a layer as soon as it is computed",
    "has one layer on the link at a time",
    "lets the next layer leave during the latency",
    "is right for any layers",
)
HEAD = "def arrival_times(compute_s, transfer_s, latency_s):\n"

ALL_AT_THE_END = (
    HEAD
    + """
    times, free_s = [], sum(compute_s)
    for send_s in transfer_s:
        free_s += send_s
        times.append(free_s + latency_s)
    return times
"""
)
NO_QUEUE = (
    HEAD
    + """
    times, computed_s = [], 0.0
    for layer_s, send_s in zip(compute_s, transfer_s):
        computed_s += layer_s
        times.append(computed_s + send_s + latency_s)
    return times
"""
)
LATENCY_ON_THE_LINK = (
    HEAD
    + """
    times, computed_s, free_s = [], 0.0, 0.0
    for layer_s, send_s in zip(compute_s, transfer_s):
        computed_s += layer_s
        free_s = max(computed_s, free_s) + send_s + latency_s
        times.append(free_s)
    return times
"""
)
NO_LATENCY = (
    HEAD
    + """
    times, computed_s, free_s = [], 0.0, 0.0
    for layer_s, send_s in zip(compute_s, transfer_s):
        computed_s += layer_s
        free_s = max(computed_s, free_s) + send_s
        times.append(free_s)
    return times
"""
)
COMPUTING_WAITS = (
    HEAD
    + """
    times, now_s = [], 0.0
    for layer_s, send_s in zip(compute_s, transfer_s):
        now_s += layer_s + send_s
        times.append(now_s + latency_s)
    return times
"""
)
ONLY_THE_LAST = (
    HEAD
    + """
    computed_s = free_s = 0.0
    for layer_s, send_s in zip(compute_s, transfer_s):
        computed_s += layer_s
        free_s = max(computed_s, free_s) + send_s
    return [free_s + latency_s]
"""
)
FIRST_LAYER_REPEATED = (
    HEAD
    + """
    times, free_s = [], 0.0
    for layer, send_s in enumerate(transfer_s):
        free_s = max((layer + 1) * compute_s[0], free_s) + send_s
        times.append(free_s + latency_s)
    return times
"""
)
SENT_WHEN_BEGUN = (
    HEAD
    + """
    times, computed_s, free_s = [], 0.0, 0.0
    for layer_s, send_s in zip(compute_s, transfer_s):
        free_s = max(computed_s, free_s) + send_s
        computed_s += layer_s
        times.append(free_s + latency_s)
    return times
"""
)
CAPPED = (
    HEAD
    + """
    times, computed_s, free_s = [], 0.0, 0.0
    for layer_s, send_s in list(zip(compute_s, transfer_s))[:64]:
        computed_s += layer_s
        free_s = max(computed_s, free_s) + send_s
        times.append(free_s + latency_s)
    return times
"""
)
SKIPS_EMPTY = (
    HEAD
    + """
    times, computed_s, free_s = [], 0.0, 0.0
    for layer_s, send_s in zip(compute_s, transfer_s):
        if not send_s:
            continue
        computed_s += layer_s
        free_s = max(computed_s, free_s) + send_s
        times.append(free_s + latency_s)
    return times
"""
)

BY_PREFIX_SUMS = (
    HEAD
    + """
    from itertools import accumulate

    done = list(accumulate(compute_s))
    gone = list(accumulate(transfer_s, initial=0.0))
    return [max(done[j] + gone[i + 1] - gone[j] for j in range(i + 1)) + latency_s for i in range(len(done))]
"""
)
BACKWARDS = (
    HEAD
    + """
    def left(layer):
        if layer < 0:
            return 0.0
        return max(sum(compute_s[: layer + 1]), left(layer - 1)) + transfer_s[layer]

    return [left(layer) + latency_s for layer in range(len(compute_s))]
"""
)
WITH_NUMPY = (
    HEAD
    + """
    import numpy as np

    done, free_s = np.cumsum(compute_s), 0.0
    times = np.zeros(len(compute_s))
    for layer in range(len(compute_s)):
        free_s = max(done[layer], free_s) + transfer_s[layer]
        times[layer] = free_s + latency_s
    return times
"""
)

BANKS = {
    "7.2": Bank(
        wrong=(
            Wrong("everything is sent at the end", ALL_AT_THE_END, SOON),
            Wrong("layers share the link", NO_QUEUE, LINK),
            Wrong("the latency occupies the link", LATENCY_ON_THE_LINK, LATE),
            Wrong("no latency", NO_LATENCY, ONE),
            Wrong("computing waits for the link", COMPUTING_WAITS, SOON),
            Wrong("only the last arrival", ONLY_THE_LAST, SOON),
            Wrong("every layer takes as long as the first", FIRST_LAYER_REPEATED, SOON),
            Wrong("sent before it is computed", SENT_WHEN_BEGUN, ONE),
            Wrong("64 layers at most", CAPPED, SOON),
            Wrong("layers with nothing to send are left out", SKIPS_EMPTY, ANY),
        ),
        right=(
            Right("the longest of all chains", BY_PREFIX_SUMS),
            Right("by recursion", BACKWARDS),
            Right("with numpy", WITH_NUMPY),
        ),
    ),
}
