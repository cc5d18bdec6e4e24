"""Answers that prove the check of section 1.7."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

EXISTS, EQUALLY, NEIGHBOURS = (
    "names a KV head that exists",
    "lets each KV head serve equally many",
    "groups neighbouring heads",
)

BANKS = {
    "1.12": Bank(
        wrong=(
            Wrong("the remainder", {1: "head % num_kv_heads"}, rejected_by=NEIGHBOURS),
            Wrong("divides by the number of KV heads", {1: "head // num_kv_heads"}, rejected_by=EXISTS),
            Wrong("every head has its own", {1: "head"}, rejected_by=EXISTS),
            Wrong("not rounded", {1: "head * num_kv_heads / num_heads"}, rejected_by=EXISTS),
            Wrong("counts from one", {1: "head // (num_heads // num_kv_heads) + 1"}, rejected_by=EXISTS),
            Wrong("always the first", {1: "0"}, rejected_by=EQUALLY),
            Wrong(
                "back to front",
                {1: "num_kv_heads - 1 - head // (num_heads // num_kv_heads)"},
                rejected_by=NEIGHBOURS,
            ),
            Wrong(
                "rounds to the nearest", {1: "min(round(head * num_kv_heads / num_heads), num_kv_heads - 1)"}, EQUALLY
            ),
        ),
        right=(
            Right("multiplies first", {1: "head * num_kv_heads // num_heads"}),
            Right(
                "looks it up in a repeated list",
                "def kv_head_of(head, num_heads, num_kv_heads):\n"
                "    group = num_heads // num_kv_heads\n"
                "    return [kv for kv in range(num_kv_heads) for _ in range(group)][head]\n",
            ),
            Right("rounds down a fraction", {1: "math.floor(head / (num_heads / num_kv_heads))"}),
        ),
    ),
}
