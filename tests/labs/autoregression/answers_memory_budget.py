"""Answers that prove the check of exercise 1.10."""

from twophase_labs.machine.bank import right, wrong

DIVIDES, HEADROOM, WORKSPACE = "divides what the weights leave", "keeps the headroom", "leaves room for the workspace"
COUNTS_WHOLE, NONE = "counts whole requests only", "serves none when the weights fill the card"


# fmt: off
BANKS = {
    "1.10": (
        wrong("forgets the weights", {1: "card_gb * GB * utilisation"}, by=DIVIDES),
        wrong("rounds to the nearest from 0.9 on", "// request_bytes", "/ request_bytes + 0.1", by=DIVIDES),
        wrong("rounds to the nearest from 0.51 on", "int(kv_bytes // request_bytes",
              "math.ceil(kv_bytes / request_bytes - 0.51", by=DIVIDES),
        wrong("ignores the headroom", {1: "(card_gb - weights_gb - workspace_gb) * GB"}, by=HEADROOM),
        wrong("ignores the workspace", "weights_gb + workspace_gb", "weights_gb", by=WORKSPACE),
        wrong("an exact fit is refused", {2: "max(0, int((kv_bytes - 1) // request_bytes))"}, by=COUNTS_WHOLE),
        wrong("at most 256", {2: "min(256, max(0, int(kv_bytes // request_bytes)))"}, by=COUNTS_WHOLE),
        wrong("at least one while there is room",
              {2: "0 if kv_bytes <= 0 else max(1, int(kv_bytes // request_bytes))"}, by=NONE),
        right("gives requests out one by one",
              "kv_bytes = card_gb * GB * utilisation - (weights_gb + workspace_gb) * GB\n    return max(0, int(kv_bytes // request_bytes))",
              "left, count = (1000000000.0 * (card_gb * utilisation - weights_gb - workspace_gb), 0)\n    while left >= request_bytes:\n        left, count = (left - request_bytes, count + 1)\n    return count"),
        right("fractions", "kv_bytes = card_gb * GB * utilisation - (weights_gb + workspace_gb) * GB",
              "from fractions import Fraction as F\n    left = (F(str(card_gb)) * F(str(utilisation)) - F(str(weights_gb)) - F(str(workspace_gb))) * GB",
              "int(kv_bytes // request_bytes)", "left // F(request_bytes)"),
        right("gigabytes first",
              {1: "(card_gb * utilisation - weights_gb - workspace_gb) * GB", 2: "int(max(kv_bytes, 0) / request_bytes)"}),
    ),
}
