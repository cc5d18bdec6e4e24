"""Parts of a learner's in the engine: the same tokens as without them, whatever the pool, the drafts and the chance."""

import random

import numpy as np
import pytest

from twophase import LLM, SamplingParams, StructuredOutputs
from twophase_features.structured_outputs.guidance import Guidance
from twophase_labs.advanced.capstone import RECORD, Asked, open_engine, own_guidance, serve
from twophase_labs.decode.tiny_llama import VOCAB, tiny_llama
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference

OPTIONS = {"skip_tokenizer_init": True, "block_size": 4, "max_num_batched_tokens": 32, "num_blocks": 40}


@pytest.fixture(scope="module")
def solved():
    return run_reference(Workbook.find().lab("05"))


def requests(seed: int, temperature: float = 0) -> list[Asked]:
    """Prompts with common beginnings, and repetitions to draft from."""
    chance = random.Random(seed)
    heads = [[chance.randrange(3, VOCAB) for _ in range(12)] for _ in range(2)]
    asked = []
    for number in range(7):
        tail = [chance.randrange(3, VOCAB) for _ in range(chance.randrange(1, 9))]
        params = SamplingParams(
            temperature=temperature, max_tokens=chance.randrange(3, 14), ignore_eos=True, seed=number
        )
        prompt = {"prompt_token_ids": [*chance.choice(heads), *tail, *tail]}
        asked.append(Asked(prompt, params))
    return asked


@pytest.mark.parametrize("num_blocks", [16, 40])
@pytest.mark.parametrize("seed", range(3))
def test_the_tokens_are_those_of_the_engine(solved, seed, num_blocks):
    folder, _ = tiny_llama()
    options = OPTIONS | {"num_blocks": num_blocks}
    plain = serve(open_engine(model=folder, **options), requests(seed))
    parts = {
        "store": (solved["PrefixStore"], solved["block_hashes"], solved["names_to_ask"]),
        "draft": solved["ngram_draft"],
        "verify": solved["verify"],
    }
    llm = open_engine(model=folder, **parts, **options)
    served = serve(llm, requests(seed))
    assert [output.outputs[0].error for output in served.outputs.values()] == 7 * [None]
    assert served.token_ids == plain.token_ids
    assert served.num_hit_tokens > 0
    assert served.num_drafts > 0
    assert llm.engine._runner.num_runs > 0
    assert llm.scheduler.cache.stats().num_in_use == 0


def test_drafts_that_nobody_verifies_change_the_tokens(solved):
    folder, _ = tiny_llama()
    plain = serve(open_engine(model=folder, **OPTIONS), requests(0))

    def blind(draft, p, q, chance):
        return [*draft, int(p[-1].argmax())]

    served = serve(open_engine(model=folder, draft=solved["ngram_draft"], verify=blind, **OPTIONS), requests(0))
    assert served.token_ids != plain.token_ids
    assert served.num_accepted == served.num_drafts > 0


def _bits(words):
    return np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool)


def test_masks_are_those_of_the_library(solved):
    llm = LLM(num_kv_blocks=16)
    params = SamplingParams(temperature=0, structured_outputs=StructuredOutputs(regex=RECORD))
    theirs = Guidance(llm.tokenizer.to_json, llm.model_config.eos_token_ids).compile(params)
    own = own_guidance(solved["advance"], solved["allowed_ids"], solved["num_allowed"]).compile(params)
    for text in (
        "",
        '{"city": "',
        '{"city": "Lima',
        '{"city": "Lima", "inhabitants": 9',
        '{"city": "Lima", "inhabitants": 9}',
    ):
        ids = llm.tokenizer.encode(text) if text else []
        mine, library = (_bits(form.allowed_after(ids, 0)) for form in (own, theirs.constraint()))
        assert not (library & ~mine).any(), text
        # Where one text alone is possible, the library insists on the tokenizer's own way to cut it.
        assert library.sum() == 1 or (mine == library).all(), text
        drafts = llm.tokenizer.encode("Lima, 12")
        assert own.num_allowed(ids, 0, drafts) == theirs.constraint().num_allowed(ids, 0, drafts)
    assert own.accepts('{"city": "Lima", "inhabitants": 9}')
    assert not own.accepts('{"city": "Lima"')


def test_all_come_before_the_first_step():
    folder, _ = tiny_llama()
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    requests = [Asked({"prompt_token_ids": [5, 6, 7 + i]}, params) for i in range(3)]
    options = {"model": folder, "skip_tokenizer_init": True, "block_size": 4, "max_num_batched_tokens": 32}
    at_once = serve(open_engine(**options), requests, every=0)
    one_by_one = serve(open_engine(**options), requests, every=2)
    assert at_once.num_steps == 4
    assert one_by_one.num_steps == 8
    assert at_once.token_ids == one_by_one.token_ids
