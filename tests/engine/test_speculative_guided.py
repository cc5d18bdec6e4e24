"""Guided decoding with drafts: the same tokens as without, always valid, drafts cut where the grammar forbids them."""

import json

import jsonschema
import pytest

from tests.engine.engines import make_engine, prompt_of, run, tokens_of
from tests.engine.speculating import Answering, Oracle, drafting_with, speculating
from tests.engine.test_guided import NUM_PADDING, PERSON, guided, load_guided_model
from tests.engine.tokenizers_for_tests import byte_level
from twophase_features.speculation.drafters import NgramDrafter
from twophase_features.structured_outputs.guidance import Guidance

PROMPTS = [prompt_of(i, length) for i, length in enumerate((5, 9, 3))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_guided_model("byte-level", tmp_path_factory.mktemp("guided"))


@pytest.mark.parametrize("drafter", ["n-gram", "right", "itself", "forbidden"])
def test_the_same_valid_outputs(model, drafter, caplog):
    codec = byte_level()
    eos = frozenset({codec.end_id})
    params = [
        guided(seed=1, json=PERSON),
        guided(seed=2, regex="(ab|cd){4,9}e"),
        guided(seed=3, choice=["yes", "yesterday"]),
    ]
    common = {"codec": codec, "eos": eos, "max_model_len": 512, "num_blocks": 400}

    def guidance():
        return Guidance(codec.tokenizer.to_str, eos)

    plain = run(make_engine(model, guidance=guidance(), **common), PROMPTS, params)
    outputs = [tokens_of(output) for output in plain]
    drafters = {
        "n-gram": NgramDrafter,
        "right": lambda: Oracle(PROMPTS, outputs),
        "itself": lambda: drafting_with(model, 400),
        "forbidden": lambda: Answering(lambda request: [codec.end_id, codec.vocab_size + NUM_PADDING - 1, 0]),
    }
    engine = speculating(model, drafters[drafter](), guidance=guidance(), **common)
    guessed = run(engine, PROMPTS, params)
    assert [tokens_of(output) for output in guessed] == outputs
    person = guessed[0].outputs[0]
    if person.finish_reason == "stop":
        jsonschema.validate(json.loads(person.text), PERSON)
    assert "drafting failed" not in caplog.text, "a text that is guessed to its end is not guessed beyond"
    stats = engine.stats()
    if drafter in ("right", "itself"):
        assert stats.num_accepted_tokens > 0
        assert stats.num_accepted_tokens == stats.num_draft_tokens > 0  # what it guesses the grammar allows
    if drafter == "forbidden":
        assert stats.num_draft_tokens == 0
