"""5.9 A plan on paper."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from twophase_labs.advanced.plan_deployments import Deployment, deployment_of, example, plan_of
from twophase_labs.machine.checks import Draw, compare
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.questions import Choice

GB = 10**9


def a_deployment(draw: Draw, num_kv_heads: int = 8, num_gpus: int = 1, scale_bytes: int = 0, seats: int = 10**6) -> Any:
    """Its pool ends in the middle of a block, so that rounding down matters and a float's last digit does not."""
    value_bytes = 1 if scale_bytes else draw.choice((2, 4))
    d = Deployment(
        weight_bytes=num_gpus * draw.integer(4 * GB, 20 * GB),
        num_layers=draw.integer(8, 81),
        num_kv_heads=num_kv_heads,
        head_dim=draw.choice((64, 80, 128)),
        value_bytes=value_bytes,
        scale_bytes=scale_bytes,
        num_gpus=num_gpus,
        gpu_bytes=draw.choice((40, 80, 141)) * GB,
        utilisation=draw.choice((0.75, 0.9)),
        workspace_bytes=draw.integer(GB // 5, 2 * GB),
        block_size=draw.choice((8, 16, 24, 32)),
        max_num_seqs=seats,
    )
    block_bytes = bytes_of_a_token(d) * d.block_size
    return replace(d, workspace_bytes=d.workspace_bytes + int(bytes_left(d) - block_bytes // 2) % block_bytes)


def heads_on_fullest(d: Deployment) -> int:
    return max(len(range(gpu, d.num_kv_heads, d.num_gpus)) for gpu in range(d.num_gpus))


def bytes_of_a_token(d: Deployment) -> int:
    return d.num_layers * heads_on_fullest(d) * sum((d.head_dim * d.value_bytes + d.scale_bytes,) * 2)


def bytes_left(d: Deployment) -> Fraction:
    return d.gpu_bytes * Fraction(str(d.utilisation)) - Fraction(d.weight_bytes, d.num_gpus) - d.workspace_bytes


def blocks_of_a_gpu(d: Deployment) -> int:
    return max(0, bytes_left(d) // (bytes_of_a_token(d) * d.block_size))


def said(d: Deployment) -> str:
    return (
        f"for {d.num_layers} layers, {d.num_kv_heads} K/V heads of {d.head_dim} in {d.value_bytes} bytes (scale "
        f"{d.scale_bytes}) on {d.num_gpus} x {d.gpu_bytes // GB} GB"
    )


def counts_k_and_v(answer: Any, draw: Draw) -> None:
    for value_bytes in (2, 4):
        d = replace(a_deployment(draw), value_bytes=value_bytes)
        compare(answer.kv_bytes_per_token(d), bytes_of_a_token(d), what=f"kv_bytes_per_token {said(d)}")


def counts_scales(answer: Any, draw: Draw) -> None:
    d = a_deployment(draw, scale_bytes=4)
    compare(answer.kv_bytes_per_token(d), bytes_of_a_token(d), what=f"kv_bytes_per_token {said(d)}")


def counts_the_fullest(answer: Any, draw: Draw, num_kv_heads: int, num_gpus: int) -> None:
    d = a_deployment(draw, num_kv_heads, num_gpus)
    compare(answer.kv_bytes_per_token(d), bytes_of_a_token(d), what=f"kv_bytes_per_token {said(d)}")


def fills_the_pool(answer: Any, draw: Draw, num_gpus: int) -> None:
    d = a_deployment(draw, num_gpus=num_gpus)
    what = f"num_blocks {said(d)}, {d.weight_bytes} bytes of weights,"
    compare(answer.num_blocks(d), blocks_of_a_gpu(d), what=what)


def exact_deployment(draw: Draw, num_blocks: int, more_bytes: int, num_gpus: int) -> Deployment:
    """Room for so many blocks and `more_bytes` (below 0: of one block more, so many are lacking). 0.75 is exact."""
    d = replace(a_deployment(draw, num_gpus=num_gpus), utilisation=0.75, gpu_bytes=2**37)
    block_bytes = bytes_of_a_token(d) * d.block_size
    room = num_blocks * block_bytes + more_bytes + (block_bytes if more_bytes < 0 else 0)
    return replace(d, weight_bytes=num_gpus * (3 * 2**35 - d.workspace_bytes - room))


def rounds_down(answer: Any, draw: Draw, more_bytes: int, num_gpus: int) -> None:
    """A block that lacks one byte is none, and one that just fits is one; requests likewise."""
    d = exact_deployment(draw, 125, more_bytes, num_gpus)
    what = "just room" if more_bytes >= 0 else "room but for a byte for one more than"
    compare(answer.num_blocks(d), 125, what=f"num_blocks with {what} for 125 blocks")
    for blocks_each in (9, 25, 126):
        got = answer.concurrency(d, blocks_each * d.block_size)
        compare(got, 125 // blocks_each, what=f"concurrency of requests of {blocks_each} blocks in a pool of 125")


def never_below_nothing(answer: Any, draw: Draw) -> None:
    d = a_deployment(draw)
    too_large = replace(d, weight_bytes=2 * d.gpu_bytes)
    compare(answer.num_blocks(too_large), 0, what="num_blocks for weights twice as large as the GPU")


def holds_whole_blocks(answer: Any, draw: Draw) -> None:
    d = a_deployment(draw)
    pool = blocks_of_a_gpu(d)
    long = 5000 + draw.integer(0, 999)
    while pool % -(-long // d.block_size) == 0:  # a part of a request must be left over
        long += 1
    for num_tokens in (1, d.block_size, d.block_size + 1, long):
        expected = pool // -(-num_tokens // d.block_size)
        got = answer.concurrency(d, num_tokens)
        compare(got, expected, what=f"concurrency for {num_tokens} tokens in blocks of {d.block_size}")
    got = answer.concurrency(replace(d, weight_bytes=2 * d.gpu_bytes), 100)
    compare(got, 0, what="concurrency for weights twice as large as the GPU")


def keeps_the_seats(answer: Any, draw: Draw) -> None:
    d = a_deployment(draw, seats=draw.integer(2, 9))
    compare(answer.concurrency(d, d.block_size), d.max_num_seqs, what=f"concurrency with {d.max_num_seqs} seats")


def agrees_with_the_planner(answer: Any, draw: Draw, model: str, num_gpus: int, kv: str) -> None:
    seats = draw.integer(4, 4000)
    text = example(
        model=model,
        tensor_parallel_size=str(num_gpus),
        kv_cache_dtype=kv,
        workspace=f"{draw.integer(1, 4)} GB",
        max_num_seqs=str(seats),
        prompt_tokens=str(draw.integer(200, 2000)),
    )
    plan = plan_of(text)
    d, num_tokens = deployment_of(plan.config), plan.config.workload.num_tokens
    what = f"concurrency of {model} on {num_gpus} GPU{'s' * (num_gpus > 1)}, K/V in {kv}, {num_tokens} tokens each,"
    compare(answer.concurrency(d, num_tokens), plan.max_requests, what=what)


EXERCISES = (
    Exercise(
        id="5.26",
        title="How many at once?",
        kind="code",
        names=("kv_bytes_per_token", "num_blocks", "concurrency"),
        points=3,
        minutes=10,
        lines=6,
        difficulty=2,
        objective="get from a configuration to the requests that fit",
        hints=(
            "Three functions, each of which needs the one before: bytes of a token, blocks of the pool, requests.",
            "K and V, layers, the heads *of this GPU*, and for each head its numbers and perhaps a scale.",
            "A block is there or it is not: round down what fits, round up what is needed.",
        ),
        checks=(
            Property(
                "counts K and V of all layers",
                counts_k_and_v,
                "Lab 1: 2 x layers x K/V heads x head size x bytes. Query heads don't count.",
            ),
            Property(
                "counts the scales",
                counts_scales,
                "int8 stores a number per token, head, and K or V besides: head_dim * value_bytes + scale_bytes.",
            ),
            Property(
                "counts what the fullest GPU has",
                counts_the_fullest,
                "8 heads on 4 GPUs are 2 each; 3 heads on 2 GPUs are 2 and 1, and the one with 2 is full first.",
                (
                    {"num_kv_heads": 8, "num_gpus": 4},
                    {"num_kv_heads": 3, "num_gpus": 2},
                    {"num_kv_heads": 4, "num_gpus": 3},
                    {"num_kv_heads": 2, "num_gpus": 8},
                ),
            ),
            Property(
                "fills what is left with blocks",
                fills_the_pool,
                "The usable share of one GPU, less its part of the weights, less its workspace; whole blocks of that.",
                ({"num_gpus": 1}, {"num_gpus": 4}),
            ),
            Property(
                "has no blocks where nothing is left",
                never_below_nothing,
                "A model that does not fit leaves 0 blocks, not a negative number of them.",
            ),
            Property(
                "gives each request whole blocks",
                holds_whole_blocks,
                "17 tokens in blocks of 16 take 2 blocks, and two halves of a free request are no request.",
            ),
            Property(
                "rounds down what fits",
                rounds_down,
                "Neither up nor to the nearest: a block that lacks a byte is no block, half a request no request.",
                (
                    {"more_bytes": 0, "num_gpus": 1},
                    {"more_bytes": -1, "num_gpus": 1},
                    {"more_bytes": -1, "num_gpus": 4},
                ),
            ),
            Property(
                "keeps to the seats",
                keeps_the_seats,
                "Memory for more does not make more run: max_num_seqs is the other limit.",
            ),
            Property(
                "agrees with the planner",
                agrees_with_the_planner,
                "The same configuration through `twophase plan`: compare the parts (its memory table has all of them).",
                (
                    {"model": "llama-3-8b", "num_gpus": 1, "kv": "auto"},
                    {"model": "llama-3-70b", "num_gpus": 4, "kv": "int8"},
                    {"model": "llama-3-70b", "num_gpus": 2, "kv": "fp8_e4m3"},
                ),
            ),
        ),
        time_limit_s=10,
    ),
    Exercise(
        id="5.27",
        title="One change",
        kind="choice",
        names=("answer_5_27",),
        points=2,
        minutes=5,
        objective="read a plan's warnings, and find the change that they ask for",
        question=Choice(
            "abcd",
            "837ddf4b0dc6b9db",
            {
                "a": "twice as many tokens fit into what is left, which is 2 % of the memory: twice little is little",
                "b": "then nobody sits without memory, but the engine serves no more than before",
                "d": "nearly: it serves almost as many as arrive, and the queue grows; more seats than memory",
            },
            hint="What takes 90 % of the memory, and which change makes that smaller?",
        ),
    ),
)
