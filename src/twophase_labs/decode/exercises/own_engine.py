"""The capstone: own allocator and own decode kernel in the engine, token for token what transformers writes."""

from typing import Any

import torch

from twophase import LLM, SamplingParams
from twophase_labs.decode.own_cache import OwnCache
from twophase_labs.decode.tiny_llama import NUM_LAYERS, VOCAB, tiny_llama
from twophase_labs.kit.models import transformers_greedy
from twophase_labs.kit.own_attention import OwnAttention
from twophase_labs.machine.checks import Draw, compare, reject
from twophase_labs.machine.exercise import Exercise, Property


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


def opened(answer: Any, block_size: int, num_blocks: int) -> LLM:
    folder, _ = tiny_llama()
    llm = answer.own_engine(folder, block_size, num_blocks, skip_tokenizer_init=True)
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
        if completion.finish_reason == "error":
            reject(f"sequence {number}, of {len(prompts[number])} tokens, ended with an error: {completion.error}")
    return [list(output.outputs[0].token_ids) for output in outputs]


def expected_of(prompts: list[list[int]], num_new: int) -> list[list[int]]:
    _, model = tiny_llama()
    # The model's end token is nothing special here: as many tokens as asked for.
    whole = [transformers_greedy(model, torch.tensor(ids), num_new, eos_id=VOCAB) for ids in prompts]
    return [ids[-num_new:].tolist() for ids in whole]


def takes_your_blocks(answer: Any, draw: Draw, block_size: int, num_blocks: int) -> None:
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
    what = f"the number of blocks for {2 * block_size + 1} tokens in pages of {block_size}"
    compare(len(table.block_ids), 3, what=what)
    compare(cache.pool.num_free, num_blocks - 3, what="the number of free blocks in the pool, with a table of 3")
    table.free()


def decodes_with_your_kernel(answer: Any, draw: Draw) -> None:
    wanted = answer.own_engine.__globals__
    kernel = CountedKernel(wanted["paged_decode_kernel"])
    # Not patch.dict: it would take away what the interpreter adds to these globals at a kernel's first launch.
    names = [name for name, value in wanted.items() if value is kernel.kernel]  # a notebook may have more for it
    wanted.update(dict.fromkeys(names, kernel))
    try:
        llm = opened(answer, 8, 12)
        if not isinstance(llm.model.backend, OwnAttention):
            reject(f"the engine's attention is a {type(llm.model.backend).__name__}, expected OwnAttention")
        written(llm, prompts_of(draw, (5,)), 3)
    finally:
        wanted.update(dict.fromkeys(names, kernel.kernel))
    # The first token comes from the prefill, so there are two decode steps.
    if kernel.num_launches == 0:
        reject("three tokens were written, and your kernel was never launched")
    compare(
        kernel.num_launches, 2 * NUM_LAYERS, what=f"the number of launches in 2 decode steps of {NUM_LAYERS} layers"
    )


def matches_transformers(answer: Any, draw: Draw, lengths: tuple[int, ...], block_size: int) -> None:
    prompts = prompts_of(draw, lengths)
    llm = opened(answer, block_size, 24)
    got = written(llm, prompts, 5)
    compare(got, expected_of(prompts, 5), what="the tokens written", axes=("sequence", "token"))


def gives_pages_back(answer: Any, draw: Draw) -> None:
    llm = opened(answer, 8, 12)
    for _ in range(2):
        written(llm, prompts_of(draw, (9, 3)), 2)
        compare(llm.scheduler.cache.num_free_blocks, 12, what="the number of free blocks when all is done")


def survives_a_full_pool(answer: Any, draw: Draw) -> None:
    """Two sequences that cannot both grow to the end: one is preempted and recomputed."""
    prompts = prompts_of(draw, (7, 7))
    llm = opened(answer, 4, 6)
    got = written(llm, prompts, 8)
    compare(got, expected_of(prompts, 8), what="the tokens written", axes=("sequence", "token"))


EXERCISES = (
    Exercise(
        id="3.23",
        title="Your decode in the engine",
        kind="code",
        names=("own_engine",),
        points=6,
        minutes=15,
        lines=5,
        difficulty=3,
        uses=("3.5", "3.6", "3.9"),
        needs=("triton",),
        objective="run a real engine on your own allocator and your own kernel",
        hints=(
            "The check says which of your parts the engine does not use yet, or which token differs.",
            "All sequences share one pool; each has a table of its own over it. The block size is the engine's.",
            "`decode` gets what `launch_paged_decode` takes, in the same order; put your kernel in front.",
        ),
        checks=(
            Property(
                "takes its blocks from your pool",
                takes_your_blocks,
                "One BlockPool of the engine's num_blocks, and for every sequence a BlockTable over that same pool, "
                "with the engine's block size.",
                ({"block_size": 16, "num_blocks": 12}, {"block_size": 8, "num_blocks": 7}),
            ),
            Property(
                "decodes with your kernel",
                decodes_with_your_kernel,
                "Give OwnAttention your function: OwnAttention(spec, block_size, decode=decode); "
                "and let it launch paged_decode_kernel once.",
            ),
            Property(
                "writes what transformers writes",
                matches_transformers,
                "If the first token is right and the second is not, it is the decode: are q, K, V, tables, lengths "
                "and the scale passed on as they came?",
                (
                    {"lengths": (5,), "block_size": 16},
                    {"lengths": (1, 8, 13), "block_size": 8},
                    {"lengths": (17, 3), "block_size": 16},
                ),
            ),
            Property(
                "gives every page back",
                gives_pages_back,
                "A finished sequence frees its table; the pool must be full again.",
            ),
            Property(
                "goes on when pages run out",
                survives_a_full_pool,
                "The scheduler preempts a sequence when grow raises OutOfBlocksError, and recomputes it later. "
                "A table that changed before it raised is then wrong.",
            ),
        ),
        time_limit_s=60,
    ),
)
