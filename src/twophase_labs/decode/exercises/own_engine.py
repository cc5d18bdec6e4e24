"""3.13 The capstone: own allocator, forks and split decode in the engine, token for token what transformers writes."""

from typing import Any

import torch

from twophase import LLM, SamplingParams
from twophase_labs.decode.decode_cases import AXES
from twophase_labs.decode.own_cache import OwnCache
from twophase_labs.decode.tiny_llama import NUM_LAYERS, VOCAB, tiny_llama
from twophase_labs.kit.models import transformers_greedy
from twophase_labs.kit.own_attention import OwnAttention
from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import exercise

ENGINE = exercise(
    "3.13", "Your decode in the engine", "own_engine", points=6, minutes=10, lines=6, difficulty=3, needs=("triton",)
)
ENGINE.time_limit_s, ENGINE.uses = 60, ("3.2", "3.3", "3.4", "3.6", "3.9", "3.10")
ENGINE.objective = "run a real engine on your own allocator, forks, kernels and merge"
ENGINE.hints = (
    "The check says which of your parts the engine does not use yet, or which token differs.",
    "All sequences share one pool; each has a table of its own over it. The block size is the engine's.",
    "`launch_paged_decode(kernel, *inputs)` gives the output; `launch_paged_decode_split(kernel, *inputs, num_splits)` "
    "gives `partial` and `lse`, and your `merge_splits` makes one output of them. OwnCache takes `fork` and "
    "`prepare_write` as they are.",
)


class CountedKernel:
    """A kernel that counts its launches."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.num_launches = 0

    def __getitem__(self, grid: Any) -> Any:
        launch = self.kernel[grid]

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.num_launches += 1
            return launch(*args, **kwargs)

        return counted


def opened(answer: Any, block_size: int, num_blocks: int, **options: int) -> LLM:
    folder, _ = tiny_llama()
    llm = answer.own_engine(folder, block_size, num_blocks, skip_tokenizer_init=True, **options)
    if not isinstance(llm, LLM):
        reject(f"own_engine should return the LLM; it returned {llm!r}")
    return llm


def prompts_of(draw: Draw, lengths: tuple[int, ...]) -> list[list[int]]:
    return [draw.integers(3, VOCAB, length).tolist() for length in lengths]


def written(llm: LLM, prompts: list[list[int]], num_new: int) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    for number, output in enumerate(outputs):
        (completion,) = output.outputs
        if completion.finish_reason == "error" and "a tuple" in str(completion.error):
            reject("`decode` returned a pair", "`merge_splits` gives (out, LSE), and the engine wants out alone.")
        if completion.finish_reason == "error":
            reject(f"sequence {number}, of {len(prompts[number])} tokens, ended with an error: {completion.error}")
    return [list(output.outputs[0].token_ids) for output in outputs]


def expected_of(prompts: list[list[int]], num_new: int) -> list[list[int]]:
    _, model = tiny_llama()
    # The model's end token is nothing special here: as many tokens as asked for.
    whole = [transformers_greedy(model, torch.tensor(ids), num_new, eos_id=VOCAB) for ids in prompts]
    return [ids[-num_new:].tolist() for ids in whole]


def compare_tokens(got: list[list[int]], expected: list[list[int]], name: str = "sequence") -> None:
    for number, (tokens, right) in enumerate(zip(got, expected, strict=True)):
        compare(len(tokens), len(right), what=f"the number of tokens of {name} {number}")
        for at, (one, other) in enumerate(zip(tokens, right, strict=True)):
            compare(one, other, what=f"token {at} of {name} {number}")


@ENGINE.check("takes its blocks from your pool", block_size=(16, 8), num_blocks=(12, 7))
def takes_your_blocks(answer: Any, draw: Draw, block_size: int, num_blocks: int) -> None:
    """One BlockPool of the engine's num_blocks, and for every sequence a BlockTable over that same pool, with the
    engine's block size."""
    llm = opened(answer, block_size, num_blocks)
    cache = llm.scheduler.cache
    if not isinstance(cache, OwnCache):
        reject(f"the engine works with a {type(cache).__name__}", "The cache factory should return an OwnCache.")
    wanted = answer.own_engine.__globals__
    if not isinstance(cache.pool, wanted["BlockPool"]):
        reject(f"the cache's pool is a {type(cache.pool).__name__}, not your BlockPool")
    compare(cache.num_blocks, num_blocks, what="the number of blocks in your pool")
    table = cache.new_table()
    if not isinstance(table, wanted["BlockTable"]):
        reject(f"a new table is a {type(table).__name__}, not your BlockTable")
    table.grow(2 * block_size + 1)
    what = f"the number of blocks for {2 * block_size + 1} tokens in blocks of {block_size}"
    compare(len(table.block_ids), 3, what=what)
    compare(cache.pool.num_free, num_blocks - 3, what="the number of free blocks in the pool, with a table of 3")
    second = opened(answer, block_size, num_blocks).scheduler.cache
    compare(second.num_free_blocks, num_blocks, what="the number of free blocks of a second engine, opened meanwhile,")
    table.free()


@ENGINE.check(
    "decodes with your kernels",
    num_splits=(1, 2),
    kernel_name=("paged_decode_kernel", "paged_decode_split_kernel"),
)
def decodes_with_your_kernels(answer: Any, draw: Draw, num_splits: int, kernel_name: str) -> None:
    """Give OwnAttention your function: OwnAttention(spec, block_size, decode=decode); and let it launch
    paged_decode_kernel once if num_splits is 1, and paged_decode_split_kernel once otherwise."""
    wanted = answer.own_engine.__globals__
    kernel = CountedKernel(wanted[kernel_name])
    # Not patch.dict: it would take away what the interpreter adds to these globals at a kernel's first launch.
    names = [name for name, value in wanted.items() if value is kernel.kernel]  # a notebook may have more for it
    wanted.update(dict.fromkeys(names, kernel))
    try:
        llm = opened(answer, 8, 12, num_splits=num_splits)
        if not isinstance(llm.model.backend, OwnAttention):
            reject(f"the engine's attention is a {type(llm.model.backend).__name__}, expected OwnAttention")
        written(llm, prompts_of(draw, (5,)), 3)
    finally:
        wanted.update(dict.fromkeys(names, kernel.kernel))
    # The first token comes from the prefill, so there are two decode steps.
    if kernel.num_launches == 0:
        reject(f"three tokens were written with num_splits={num_splits}, and your {kernel_name} was never launched")
    what = f"the number of launches of {kernel_name} in 2 decode steps of {NUM_LAYERS} layers"
    compare(kernel.num_launches, 2 * NUM_LAYERS, what=what)


@ENGINE.check("merges the splits with your function")
def merges_with_your_function(answer: Any, draw: Draw) -> None:
    """The kernel leaves a result per split: `num_splits` of them go through `merge_splits`, once a layer."""
    wanted = answer.own_engine.__globals__
    merge = wanted["merge_splits"]
    merged: list[tuple[int, Any]] = []
    returned: list[Any] = []

    def noted(partial: Any, lse: Any) -> Any:
        out, total = merge(partial, lse)
        merged.append((partial.shape[2], out))
        return out, total

    names = [name for name, value in wanted.items() if value is merge]
    wanted.update(dict.fromkeys(names, noted))
    try:
        llm = answer.own_engine(tiny_llama()[0], 8, 12, num_splits=3, skip_tokenizer_init=True)
        backend = llm.model.backend
        decode = backend._decode

        def watched(*inputs: Any) -> Any:
            returned.append(decode(*inputs))
            return returned[-1]

        backend._decode = watched
        written(llm, [[5, 6, 7]], 2)
    finally:
        wanted.update(dict.fromkeys(names, merge))
    if not merged:
        reject("two tokens were written, and your merge_splits was never called")
    compare(merged[0][0], 3, what="the number of splits that were merged, with num_splits=3,")
    for got, (_, out) in zip(returned, merged, strict=False):
        compare(got, out, what="what your decode returned, beside what merge_splits gave it,", axes=AXES["out"])


@ENGINE.check(
    "writes what transformers writes",
    lengths=((5,), (5,), (1, 8, 13), (17, 3)),
    block_size=(16, 16, 8, 16),
    num_splits=(1, 2, 1, 2),
)
def matches_transformers(answer: Any, draw: Draw, lengths: tuple[int, ...], block_size: int, num_splits: int) -> None:
    """A wrong first token is not the decode's: was OwnAttention given the engine's block size? If only later ones
    are wrong: are q, K, V, tables, lengths and the scale passed on as they came?"""
    prompts = prompts_of(draw, lengths)
    llm = opened(answer, block_size, 24, num_splits=num_splits)
    got = written(llm, prompts, 5)
    compare_tokens(got, expected_of(prompts, 5))


@ENGINE.check("gives every block back")
def gives_pages_back(answer: Any, draw: Draw) -> None:
    """A finished sequence frees its table; the pool must be full again."""
    llm = opened(answer, 8, 12)
    for _ in range(2):
        written(llm, prompts_of(draw, (9, 3)), 2)
        compare(llm.scheduler.cache.num_free_blocks, 12, what="the number of free blocks when all is done")


@ENGINE.check("forks a prompt")
def forks_a_prompt(answer: Any, draw: Draw) -> None:
    """OwnCache(pool, new_table, block_size, fork, prepare_write): a request with n=2 calls them."""
    # Two completions of one prompt, drawn with a seed: those that the engine's own cache and attention write.
    prompt = {"prompt_token_ids": prompts_of(draw, (11,))[0]}
    params = SamplingParams(n=2, temperature=1.0, seed=draw.integer(0, 10**6), max_tokens=7, ignore_eos=True)
    llm = opened(answer, 4, 24)
    folder, _ = tiny_llama()
    own = LLM(
        folder, device="cpu", dtype="float32", attention_backend="torch", block_size=4, num_kv_blocks=24,
        skip_tokenizer_init=True,
    )  # fmt: skip
    texts = []
    for engine in (llm, own):
        (output,) = engine.generate([prompt], params, use_tqdm=False)
        errors = [c.error for c in output.outputs if c.finish_reason == "error"]
        if errors:
            reject("a request for two completions (n=2) ended with an error", str(errors[0]))
        texts.append([list(completion.token_ids) for completion in output.outputs])
    compare_tokens(texts[0], texts[1], "completion")
    if not getattr(llm.scheduler.cache, "num_copies", 0):
        reject("two completions shared a block that was not full, and none was copied before it was written")
    compare(llm.scheduler.cache.num_free_blocks, 24, what="the number of free blocks when both are done")


@ENGINE.check("goes on when blocks run out")
def survives_a_full_pool(answer: Any, draw: Draw) -> None:
    """The scheduler preempts a sequence when grow raises OutOfBlocksError, and recomputes it later. A table that
    changed before it raised is then wrong."""
    # Two sequences that cannot both grow to the end: one is preempted and recomputed.
    prompts = prompts_of(draw, (7, 7))
    llm = opened(answer, 4, 6)
    got = written(llm, prompts, 8)
    compare_tokens(got, expected_of(prompts, 8))
