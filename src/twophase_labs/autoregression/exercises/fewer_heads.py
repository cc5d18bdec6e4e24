"""1.7 Fewer heads to remember: MHA, GQA, MQA."""

from typing import Any

import torch
import torch.nn.functional as F

from twophase_labs.machine.checks import Draw, integer, reject
from twophase_labs.machine.exercise import Exercise, Property

SHAPES = (
    {"num_heads": 2, "num_kv_heads": 2},
    {"num_heads": 4, "num_kv_heads": 2},
    {"num_heads": 9, "num_kv_heads": 3},
    {"num_heads": 5, "num_kv_heads": 1},
    {"num_heads": 32, "num_kv_heads": 8},
    {"num_heads": 49, "num_kv_heads": 49},
    {"num_heads": 71, "num_kv_heads": 1},
    {"num_heads": 98, "num_kv_heads": 14},
    {"num_heads": 128, "num_kv_heads": 16},
)


def heads_read(answer: Any, num_heads: int, num_kv_heads: int) -> list[Any]:
    read = [answer.kv_head_of(head, num_heads, num_kv_heads) for head in range(num_heads)]
    return [one if integer(one) is None else integer(one) for one in read]


def names_a_kv_head(answer: Any, draw: Draw, num_heads: int, num_kv_heads: int) -> None:
    for head, kv_head in enumerate(heads_read(answer, num_heads, num_kv_heads)):
        if integer(kv_head) is None:
            reject(f"the KV head of head {head} is {kv_head!r}, expected a whole number")
        if not 0 <= kv_head < num_kv_heads:
            reject(f"head {head} reads KV head {kv_head}; there are only 0 to {num_kv_heads - 1}")


def shares_equally(answer: Any, draw: Draw, num_heads: int, num_kv_heads: int) -> None:
    read = heads_read(answer, num_heads, num_kv_heads)
    for kv_head in range(num_kv_heads):
        if read.count(kv_head) != num_heads // num_kv_heads:
            reject(
                f"KV head {kv_head} is read by {read.count(kv_head)} query heads, "
                f"each should serve {num_heads // num_kv_heads}",
                f"heads 0, 1, 2, ... read KV heads {read}",
            )


def reads_what_pytorch_reads(answer: Any, draw: Draw, num_heads: int, num_kv_heads: int) -> None:
    # Every value of KV head j is j, so attention over it gives j, whatever the weights.
    v = torch.arange(num_kv_heads, dtype=torch.float32)[None, :, None, None].expand(1, num_kv_heads, 3, 4)
    q, k = draw.normal(1, num_heads, 1, 4), draw.normal(1, num_kv_heads, 3, 4)
    oracle = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    expected = oracle[0, :, 0, 0].round().int().tolist()
    read = heads_read(answer, num_heads, num_kv_heads)
    for head, (got, wanted) in enumerate(zip(read, expected, strict=True)):
        if got != wanted:
            reject(
                f"head {head} reads KV head {got}, expected {wanted}",
                f"heads 0, 1, 2, ... read {read}",
                f"expected           {expected}",
            )


EXERCISES = (
    Exercise(
        id="1.12",
        title="Which head reads which",
        kind="code",
        names=("kv_head_of",),
        points=2,
        minutes=4,
        lines=1,
        objective="map query heads to key/value heads",
        hints=(
            "Write down the list for 4 query heads over 2 KV heads and compare it with the picture.",
            "Neighbours share: a group is H // H_kv heads in a row.",
            "The number of the group that a head is in: head // (size of a group).",
        ),
        checks=(
            Property(
                "names a KV head that exists",
                names_a_kv_head,
                "There are only num_kv_heads of them, counted from 0, in whole numbers.",
                SHAPES,
            ),
            Property(
                "lets each KV head serve equally many",
                shares_equally,
                "Each KV head serves H // H_kv query heads.",
                SHAPES,
            ),
            Property(
                "groups neighbouring heads",
                reads_what_pytorch_reads,
                "A group is a run of neighbours: heads 0 to g-1 read KV head 0. The remainder h % H_kv deals them out "
                "like cards instead: right shapes, wrong model.",
                SHAPES,
            ),
        ),
        time_limit_s=5,
    ),
)
