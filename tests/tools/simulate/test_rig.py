"""A rig borrows an LLM's pages: afterwards the LLM says what it said before."""

import pytest

from twophase.core.errors import CacheStateError
from twophase.core.request import SamplingParams
from twophase.llm import LLM
from twophase_tools.load.workloads import TimedRequest
from twophase_tools.simulate.rig import Rig

PROMPT = {"prompt_token_ids": [3 + i for i in range(40)]}
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def tokens_of(llm: LLM) -> tuple[int, ...]:
    return llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids


def test_a_prompt_has_the_same_answer_before_and_after(tiny_folder):
    llm = LLM(tiny_folder, num_kv_blocks=16, block_size=4, max_model_len=60, skip_tokenizer_init=True)
    expected = tokens_of(llm)
    rig = Rig(llm)
    assert tokens_of(llm) == expected
    rig.play([TimedRequest("r", 0.0, 50, 3)])
    assert tokens_of(llm) == expected


def test_a_busy_llm_keeps_its_pages(tiny_folder):
    llm = LLM(tiny_folder, num_kv_blocks=16, block_size=4, max_model_len=60, skip_tokenizer_init=True)
    expected = tokens_of(llm)
    rig = Rig(llm)
    llm.engine.add_request("a", PROMPT, PARAMS)
    llm.engine.step()
    with pytest.raises(CacheStateError, match="Finish or abort"):
        rig.play([TimedRequest("r", 0.0, 50, 3)])
    while llm.engine.has_unfinished_requests():
        (output,) = llm.engine.step()
    assert output.outputs[0].token_ids == expected
