"""The capstone: what stands between a learner's parts and the engine."""

from typing import Any

from twophase import SamplingParams
from twophase.cache.prefix_cache import block_digest, salt_digest, tokens_to_bytes
from twophase_labs.advanced.capstone import Asked, open_engine, serve
from twophase_labs.advanced.exercises.guided_decoding import (
    FORMS,
    LOOPS,
    drawn_prefix,
    language_of,
    state_after,
    tokens_for,
)
from twophase_labs.advanced.exercises.prefix_store import Plain
from twophase_labs.advanced.guided_machine import PRICE, Machine, chain
from twophase_labs.decode.tiny_llama import VOCAB, tiny_llama
from twophase_labs.machine.checks import Draw, amount, compare, reject
from twophase_labs.machine.exercise import exercise

TIMING = exercise(
    "5.10", "Wire them", "names_to_ask num_allowed", points=3, minutes=7, lines=4, difficulty=2, time_limit_s=60
)
TIMING.objective = "make parts that are right alone right together"
TIMING.hints = (
    "The engine computes the last token of every prompt, because it needs its logits. So the block with that token "
    "may not be a hit.",
    "A pending block, and all that is behind it, cannot be used yet: stop at the first pending name.",
    "(num_tokens - 1) // block_size blocks end before the last token. For the drafts: `advance(machine, state, "
    "texts[draft])` gives the next state or None; a token without text leads nowhere, though `advance` can read it.",
)

OPTIONS: dict[str, Any] = {
    "skip_tokenizer_init": True, "block_size": 4, "max_num_batched_tokens": 32, "num_blocks": 40,
}  # fmt: skip


def expect_names(answer: Any, names: list[Any], num_tokens: int, block_size: int, pending: Any, why: str = "") -> None:
    before = list(names), set(pending)
    got = answer.names_to_ask(names, num_tokens, block_size, pending)
    if (list(names), set(pending)) != before:
        reject("the call modified `names` or `pending`", "They are the cache's own.")
    expected = []
    for index, name in enumerate(names):
        if name in pending or (index + 1) * block_size >= num_tokens:
            break
        expected.append(name)
    if not isinstance(got, list):
        reject(f"the result is {got!r:.80}, expected a list")
    if got != expected:
        reject(
            f"of the names {names} of {amount(num_tokens, 'token')} in blocks of {block_size}, with "
            f"{sorted(pending)} pending, yours asks for {got}, expected {expected}" + why
        )


@TIMING.check("leaves the last token to be computed")
def leaves_the_last_token(answer: Any, draw: Draw) -> None:
    """Only blocks that end before the prompt's last token may be asked for."""
    for block_size in (1, 4, 16):
        for num_tokens in (0, 1, block_size, block_size + 1, 5 * block_size, 6 * block_size - 1, 80 * block_size + 1):
            names = [f"h{i}" for i in range(num_tokens // block_size)]
            expect_names(answer, names, num_tokens, block_size, frozenset())


@TIMING.check("stops at the first pending name")
def stops_at_pending(answer: Any, draw: Draw) -> None:
    """A prefix ends where the first of its blocks is not there yet."""
    for _ in range(12):
        num = draw.integer(1, 9)
        names = [f"h{i}" for i in range(num)]
        pending = frozenset(draw.choice([*names, "of another prompt"]) for _ in range(draw.integer(0, 3)))
        expect_names(answer, names, 4 * num + draw.integer(0, 4), 4, pending)
    expect_names(answer, ["a", "b", "c"], 13, 4, frozenset({"b"}), "; what is behind a pending block is behind a gap")


@TIMING.check("counts drafts that follow one another")
def counts_right_runs(answer: Any, draw: Draw) -> None:
    """Each draft is read from the state after the drafts before it."""
    texts = ["1", "2.", "50", ".", "x", "", "0"]
    for state, drafts in (
        (0, []),
        (0, [0, 1, 2]),
        (0, [0, 0, 3, 2, 0]),
        (0, [4, 0]),
        (2, [2]),
        (3, [6, 6]),
        (0, [0, 4, 0]),
    ):
        expect_allowed(answer, PRICE, state, drafts, texts)
    # Back in state 0 the run goes on, however long.
    for drafts in ([0, 0, 1], [0] * draw.integer(65, 90)):
        expect_allowed(answer, LOOPS["ab"], 0, drafts, ["ab", "b"])


@TIMING.check("ends a run at a token without text")
def stops_at_the_end(answer: Any, draw: Draw) -> None:
    """Nothing can follow the end, and a token without text never gets any further."""
    # A token without text ends the answer, or is of no form at all.
    texts = ["1", "", "2"]
    for drafts in ([1], [0, 1, 2], [0, 2, 1], [1, 1]):
        expect_allowed(answer, PRICE, 0, drafts, texts)


def expect_allowed(answer: Any, machine: Machine, state: int, drafts: list[int], texts: list[str]) -> None:
    before = list(drafts)
    got = answer.num_allowed(advance, machine, state, drafts, texts)
    if drafts != before:
        reject("the call modified `drafts`")
    expected, at = 0, state
    for draft in drafts:
        after = advance(machine, at, texts[draft]) if texts[draft] else None
        if after is None:
            break
        expected, at = expected + 1, after
    compare(got, expected, what=f"how many of the drafts {[texts[one] for one in drafts]} may come in state {state}")


def advance(machine: Machine, state: int, text: str) -> int | None:
    here: int | None = state
    for character in text:
        if here is None:
            return None
        here = machine.edges[here].get(character)
    return here


@TIMING.check("counts drafts under any form", *tuple({"form": form} for form in FORMS))
def counts_drafts(answer: Any, draw: Draw, form: str) -> None:
    """The first draft that the grammar does not allow ends the run; later ones do not count."""
    machine, language = chain(*FORMS[form][0]), language_of(FORMS[form][0])
    for _ in range(10):
        texts = tokens_for(draw, language)[:-1]
        state = state_after(machine, drawn_prefix(draw, language))
        expect_allowed(answer, machine, state, draw.integers(0, len(texts), draw.integer(0, 6)).tolist(), texts)


def hashes_of(token_ids: Any, block_size: int, salt: str = "") -> list[bytes]:
    parent, names = salt_digest(salt), []
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = block_digest(parent, tokens_to_bytes(token_ids[end - block_size : end]))
        names.append(parent)
    return names


@TIMING.check("serves the plain engine's tokens")
def serves_the_same(answer: Any, draw: Draw) -> None:
    """In the engine itself, with requests that arrive in the same step and begin alike."""
    # Seven requests in the same step, with shared beginnings, some of them equal, in blocks of four.
    folder, _ = tiny_llama()
    head = draw.integers(3, VOCAB, 16).tolist()
    prompts = [head, head, *([*head[: 4 * i], *draw.integers(3, VOCAB, 3).tolist()] for i in range(5))]
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    requests = [Asked({"prompt_token_ids": prompt}, params) for prompt in prompts]
    store = Plain, hashes_of, answer.names_to_ask
    plain = serve(open_engine(model=folder, **OPTIONS), requests, every=0)
    for every in (0, 3):
        own = serve(open_engine(model=folder, store=store, **OPTIONS), requests, every=every)
        errors = [output.outputs[0].error for output in own.outputs.values() if output.outputs[0].error]
        if errors:
            reject(f"with your names_to_ask the engine failed a request: {errors[0]}")
        if own.token_ids != plain.token_ids:
            index = next(
                i for i, pair in enumerate(zip(own.token_ids, plain.token_ids, strict=True)) if pair[0] != pair[1]
            )
            reject(f"request {index} got {own.token_ids[index]}, the plain engine gives {plain.token_ids[index]}")
    if own.num_hit_tokens == 0:
        reject("no request found a block, and they begin alike")
