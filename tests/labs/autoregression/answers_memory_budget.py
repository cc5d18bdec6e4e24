"""Answers that prove the check of exercise 1.10."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

DIVIDES, HEADROOM, WORKSPACE, NONE = (
    "divides what the weights leave",
    "keeps the headroom",
    "leaves room for the workspace",
    "serves none when the weights fill the card",
)

BANKS = {
    "1.10": Bank(
        wrong=(
            Wrong(
                "GiB for GB",
                {1: "card_gb * GIB * utilisation - (weights_gb + workspace_gb) * GIB"},
                rejected_by=DIVIDES,
            ),
            Wrong("forgets the weights", {1: "card_gb * GB * utilisation"}, rejected_by=DIVIDES),
            Wrong("rounds up", {2: "max(0, math.ceil(kv_bytes / request_bytes))"}, rejected_by=DIVIDES),
            Wrong("rounds to the nearest", {2: "max(0, round(kv_bytes / request_bytes + 0.01))"}, rejected_by=DIVIDES),
            Wrong("does not round", {2: "max(0, kv_bytes / request_bytes)"}, rejected_by=DIVIDES),
            Wrong(
                "headroom of what is left",
                {1: "(card_gb - weights_gb - workspace_gb) * GB * utilisation"},
                rejected_by=HEADROOM,
            ),
            Wrong(
                "ignores the headroom",
                {1: "(card_gb - weights_gb - workspace_gb) * GB"},
                rejected_by=HEADROOM,
            ),
            Wrong(
                "ignores the workspace",
                {1: "card_gb * GB * utilisation - weights_gb * GB"},
                rejected_by=WORKSPACE,
            ),
            Wrong("fewer than none", {2: "int(kv_bytes // request_bytes)"}, rejected_by=NONE),
        ),
        right=(
            Right(
                "gigabytes first",
                {
                    1: "(card_gb * utilisation - weights_gb - workspace_gb) * GB",
                    2: "int(max(kv_bytes, 0) / request_bytes)",
                },
            ),
            Right(
                "gives requests out one by one",
                "def requests_that_fit(card_gb, weights_gb, request_bytes, utilisation=1.0, workspace_gb=0):\n"
                "    left, count = 1e9 * (card_gb * utilisation - weights_gb - workspace_gb), 0\n"
                "    while left >= request_bytes:\n"
                "        left, count = left - request_bytes, count + 1\n"
                "    return count\n",
            ),
        ),
    ),
}
