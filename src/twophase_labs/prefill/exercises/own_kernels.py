"""2.9 The learner's kernels in the engine."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from twophase import SamplingParams
from twophase_labs.kit.guarded import run_guarded
from twophase_labs.kit.models import is_decided, smollm2, transformers_greedy
from twophase_labs.kit.own_attention import OwnAttention
from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.kernels import device
from twophase_labs.prefill.engine_runs import BLOCK_SIZE
from twophase_labs.prefill.launch import BLOCK_M
from twophase_labs.prefill.paged_oracle import paged_attention, ragged_batch

OWN = exercise("2.9", "Your kernels in the engine", "own_write own_prefill", points=4, minutes=7, lines=5, difficulty=2)
OWN.time_limit_s, OWN.uses, OWN.needs = 120, ("2.8",), ("triton", "model")
OWN.objective = "choose a grid, launch kernels, and run a real model on them"
OWN.hints = (
    "Write down which program does what, for chunks of 3 and 50 tokens, 9 heads and 3 KV heads.",
    "A program has BLOCK_M rows, and a token takes G = H / H_kv of them.",
    "A grid is a tuple. Round up, or the last tokens of the longest chunk have no program.",
)


def slots_by_hand(table: Tensor, start: int, end: int, block_size: int) -> Tensor:
    slots = []
    for position in range(start, end):
        block, offset = divmod(position, block_size)
        slots.append(int(table[block]) * block_size + offset)
    return torch.tensor(slots, dtype=torch.int64)


@OWN.check("writes every token", num_tokens=(1, 13), num_kv_heads=(3, 3))
def writes_every_token(answer: Any, draw: Draw, num_tokens: int, num_kv_heads: int) -> None:
    """One program per token, in a grid of one number: (n,)."""
    k, v = draw.normal(num_tokens, num_kv_heads, 16), draw.normal(num_tokens, num_kv_heads, 16)
    table = draw.permutation(5).int()
    slots = slots_by_hand(table, 0, num_tokens, 4)
    caches = {name: torch.zeros(5, num_kv_heads, 4, 16) for name in ("k_cache", "v_cache")}
    inputs = {"k": k, "v": v, **caches, "slot_mapping": slots}
    got = run_guarded(lambda **t: answer.own_write(**t), inputs, {}, mutable=tuple(caches))
    for name, new in (("k_cache", k), ("v_cache", v)):
        expected = torch.zeros_like(caches[name])
        expected[slots // 4, :, slots % 4] = new
        compare(got[name], expected, what=name, axes=("block", "KV head", "slot", "dim"))


@cache
def relayed_engine() -> tuple[Any, SimpleNamespace]:
    """SmolLM2 with attention that calls whatever functions stand in the namespace beside it.

    The engine ends a request whose step raises, so the namespace keeps the first exception, `error`.
    """
    from twophase import LLM

    parts = SimpleNamespace(error=None)

    def relay(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            try:
                return getattr(parts, name)(*args)
            except Exception as error:
                parts.error = parts.error or error
                raise

        return call

    llm = LLM(
        attention_backend=lambda spec: OwnAttention(spec, BLOCK_SIZE, write=relay("write"), prefill=relay("prefill")),
        dtype="float32",
        num_kv_blocks=16,
        max_num_seqs=4,
        enable_prefix_caching=False,
    )
    return llm, parts


@contextmanager
def grids_of(function: Callable[..., Any], kernel: str) -> Iterator[list[tuple[int, ...]]]:
    """The grids over which `function` launches the kernel it knows by this name; nothing is launched.

    A kernel on a wrong grid would read and write anywhere.
    """
    grids: list[tuple[int, ...]] = []
    names = getattr(function, "__globals__", {})
    real: Any = names.get(kernel)

    class Watched:
        def __getitem__(self, grid: Any) -> Callable[..., Any]:
            def launch(*args: Any, **kwargs: Any) -> None:
                shape = grid(kwargs) if callable(grid) else grid
                grids.append(tuple(shape) if isinstance(shape, tuple | list) else (shape,))

            return launch

    if real is not None:
        names[kernel] = Watched()
    try:
        yield grids
    finally:
        if real is not None:
            names[kernel] = real


def compare_grid(grids: list[tuple[int, ...]], expected: tuple[int, ...], what: str) -> None:
    """One launch has this grid; several have as many programs together, at most."""
    if len(grids) == 1 and (*grids[0], 1, 1, 1)[:3] != (*expected, 1, 1, 1)[:3]:
        reject(f"the grid is {grids[0]}, expected {expected}: {what}")
    num_programs = sum(math.prod(grid) for grid in grids)
    if num_programs > math.prod(expected):
        reject(f"{num_programs} programs are launched in all, expected {math.prod(expected)}", what)


@OWN.check(
    "launches the right grid",
    {"query_lens": (10, 100), "heads": (9, 3)},
    {"query_lens": (42,), "heads": (3, 1)},
    {"query_lens": (43, 1), "heads": (3, 1)},
    {"query_lens": (20, 23), "heads": (6, 2)},  # together they are more than a tile
    {"query_lens": (3, 40), "heads": (3, 1), "cached": (60, 0)},  # so is a sequence with its history
    {"query_lens": (30,), "heads": (5, 1)},  # other tiles: of 25 tokens
    {"query_lens": (40, 40), "heads": (2, 2)},  # of 128
)
def covers_just_enough(
    answer: Any, draw: Draw, query_lens: Sequence[int], heads: tuple[int, int], cached: Sequence[int] = ()
) -> None:
    """The grid is (query tiles of the longest chunk, sequences, KV heads), in the order in which the kernel reads
    its program ids. A program has BLOCK_M rows, so BLOCK_M // G whole tokens (`//`, not `/`); the number of tiles
    is rounded up: `triton.cdiv`."""
    batch = ragged_batch(draw, query_lens, cached or (0,) * len(query_lens), heads=heads, head_dim=16, page=16)
    with grids_of(answer.own_prefill, "paged_prefill_kernel") as grids:
        answer.own_prefill(**{name: t.to(device) for name, t in batch.tensors.items()}, scale=batch.scale)
    block_q = BLOCK_M // (heads[0] // heads[1])
    expected = (-(-max(query_lens) // block_q), len(query_lens), heads[1])
    what = f"query tiles of {block_q} tokens for chunks of {', '.join(map(str, query_lens))}, sequences, KV heads"
    compare_grid(grids, expected, what)


@OWN.check(
    "attends for short chunks",
    query_lens=((1,), (3, 5, 1), (1,) * 70),
    cached=((0,), (0, 4, 0), (0,) * 70),
    heads=((3, 1), (6, 2), (3, 1)),
)
def attends(
    answer: Any,
    draw: Draw,
    query_lens: Sequence[int],
    cached: Sequence[int],
    heads: tuple[int, int],
    scale: float = 0.0,
) -> None:
    """The grid is right. The arguments come in the order of the kernel's parameters; the scale is multiplied by
    log2(e)."""
    batch = ragged_batch(draw, query_lens, cached, heads=heads, head_dim=16, page=16)
    batch.scale = scale or batch.scale
    expected, _ = paged_attention(batch)
    outputs = {"out": torch.empty_like(batch.q), "lse": torch.empty(batch.q.shape[:2])}
    returned: list[Tensor] = []

    def launch(**tensors: Tensor) -> None:
        result = answer.own_prefill(**tensors, scale=batch.scale)
        returned.append(result.cpu().clone() if isinstance(result, Tensor) else result)

    run_guarded(launch, batch.tensors, outputs)
    compare(returned[0], expected, what="the attention", axes=("token", "head", "dim"), atol=1e-4)


OWN.check(
    "attends for long chunks",
    query_lens=((3, 50),),
    cached=((0, 2),),
    heads=((9, 3),),
    hint="Some tokens have no program. How many whole tokens fit into BLOCK_M rows, which chunk is the longest, and "
    "is the division rounded up?",
)(attends)
OWN.check(
    "takes the scale it is given",
    query_lens=((4,),),
    cached=((0,),),
    heads=((3, 1),),
    scale=(0.1,),
    hint="Not every model scales by 1 / sqrt(D); use the argument.",
)(attends)


@OWN.check("writes each token once", num_tokens=(13,))
def writes_once(answer: Any, draw: Draw, num_tokens: int) -> None:
    """The grid of the write kernel is (n,)."""
    k, v = draw.normal(num_tokens, 2, 16).to(device), draw.normal(num_tokens, 2, 16).to(device)
    caches = [torch.zeros(5, 2, 4, 16, device=device) for _ in range(2)]
    with grids_of(answer.own_write, "kv_write_kernel") as grids:
        answer.own_write(k, v, *caches, torch.arange(num_tokens, device=device))
    compare_grid(grids, (num_tokens,), "a program for each token")


@OWN.check("generates what transformers generates", num_prompt=(1, 21), num_new=(2, 3))
def generates_the_same(answer: Any, draw: Draw, num_prompt: int, num_new: int) -> None:
    """Single calls are right. Does a function keep something from call to call, or rely on a shape?"""
    model, _ = smollm2()
    while True:
        ids = draw.integers(100, 40_000, num_prompt)
        whole = transformers_greedy(model, ids, num_new)
        if is_decided(model, whole, num_new):
            break
    expected = whole[num_prompt:].tolist()
    llm, parts = relayed_engine()
    parts.write, parts.prefill, parts.error = answer.own_write, answer.own_prefill, None
    params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True, logprobs=1)
    (output,) = llm.generate([{"prompt_token_ids": ids.tolist()}], params, use_tqdm=False)
    if parts.error is not None:
        raise parts.error
    got = output.outputs[0]
    compare(list(got.token_ids), expected, what="the id", axes=("new token",))
    # Also half a model may hit on the likeliest token.
    with torch.inference_mode():
        of_all = model(whole[None]).logits[0, num_prompt - 1 : -1].log_softmax(-1)
    found = torch.tensor([token.logprob for token in got.logprobs])
    wanted = of_all[torch.arange(num_new), torch.tensor(expected)]
    compare(found, wanted, what="the log-probability", axes=("new token",), rtol=0.0, atol=1e-2)
