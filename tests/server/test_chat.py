"""/v1/chat/completions, asked by OpenAI's own client: the same tokens as `LLM.generate`."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.conftest import ids_of, joined
from twophase import SamplingParams, StructuredOutputs

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What does the fox say?"}]
SCHEMA = {
    "type": "object",
    "properties": {"mood": {"enum": ["calm", "wild"]}, "legs": {"enum": [2, 4]}},
    "required": ["mood", "legs"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}
GREEDY = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}

# What is asked, and the sampling parameters that mean the same.
ASKED = {
    "greedy": (GREEDY, {"temperature": 0, "max_tokens": 12, "ignore_eos": True}),
    "seeded": ({"seed": 7, "max_completion_tokens": 9, "top_p": 0.9}, {"seed": 7, "max_tokens": 9, "top_p": 0.9}),
    "several": ({"seed": 1, "n": 3, "max_tokens": 6}, {"seed": 1, "n": 3, "max_tokens": 6}),
    "penalties": (
        {"seed": 2, "max_tokens": 9, "presence_penalty": 1.5, "frequency_penalty": 0.5, "logit_bias": {"40": 20}},
        {"seed": 2, "max_tokens": 9, "presence_penalty": 1.5, "frequency_penalty": 0.5, "logit_bias": {40: 20}},
    ),
    "vLLM's": (
        {"seed": 3, "max_tokens": 9, "extra_body": {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.3}},
        {"seed": 3, "max_tokens": 9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.3},
    ),
    "a schema": (
        {"seed": 4, "max_tokens": 60, "response_format": FORMAT},
        {"seed": 4, "max_tokens": 60, "structured_outputs": StructuredOutputs(json=SCHEMA)},
    ),
    "a choice": (
        {"seed": 5, "max_tokens": 9, "extra_body": {"structured_outputs": {"choice": ["yes", "no"]}}},
        {"seed": 5, "max_tokens": 9, "structured_outputs": StructuredOutputs(choice=["yes", "no"])},
    ),
}


def expected(oracle, params, messages=MESSAGES):
    (output,) = oracle.generate([ids_of(messages)], SamplingParams(**params), use_tqdm=False)
    return output


@pytest.fixture
def ask(client, chat_folder):
    def ask(messages=MESSAGES, **options):
        return client.chat.completions.create(model=chat_folder.name, messages=messages, **options)

    return ask


def test_to_the_end_of_the_context_by_default(ask):
    found = ask([{"role": "user", "content": "fox! " * 75}], temperature=0, extra_body={"ignore_eos": True})
    assert found.choices[0].finish_reason == "length"
    assert found.usage.total_tokens == 256
    assert 1 <= found.usage.completion_tokens < 100


def test_to_the_end_of_the_pool_by_default(ask):
    """Eight completions of 256 tokens would not fit: the pool has 192 blocks of 4."""
    messages = [{"role": "user", "content": "fox! " * 20}]
    found = ask(messages, n=8, temperature=0, extra_body={"ignore_eos": True})
    assert len(found.choices) == 8
    assert {choice.finish_reason for choice in found.choices} == {"length"}
    num_new = found.usage.completion_tokens // 8
    num_left = 192 - found.usage.prompt_tokens // 4
    assert num_left // 8 * 4 - 4 <= num_new <= num_left // 8 * 4 + 4


def test_any_json_object(ask):
    params = {"seed": 9, "max_tokens": 200, "extra_body": {"logit_bias": {"92": 60}}}  # '}'
    choice = ask(response_format={"type": "json_object"}, **params).choices[0]
    assert choice.message.content.startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize("streams", [False, True])
def test_stop(ask, oracle, streams):
    text = expected(oracle, ASKED["greedy"][1]).outputs[0].text
    stop = text[5:7]
    asked = ask(**GREEDY, stop=stop, stream=streams)
    found = joined(asked) if streams else [(asked.choices[0].message.content, asked.choices[0].finish_reason)]
    assert found == [(text[: text.index(stop)], "stop")]
    if not streams:
        assert asked.choices[0].stop_reason == stop


@pytest.mark.parametrize("streams", [False, True])
def test_logprobs(ask, oracle, streams):
    output = expected(oracle, {"temperature": 0, "max_tokens": 6, "logprobs": 3, "ignore_eos": True})
    options = GREEDY | {"max_tokens": 6}
    if streams:
        chunks = ask(**options, logprobs=True, top_logprobs=3, stream=True)
        parts = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs is not None]
        entries = [entry for part in parts for entry in part.content]
    else:
        entries = ask(**options, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    wanted = output.outputs[0].logprobs
    assert [entry.logprob for entry in entries] == pytest.approx([entry.logprob for entry in wanted])
    for entry, other in zip(entries, wanted, strict=True):
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx([logprob for _, logprob in other.top])
        assert entry.bytes is None or bytes(entry.bytes).decode() == entry.token
    assert "".join(entry.token for entry in entries) == "".join(
        oracle.tokenizer.decode([entry.token_id], skip_special_tokens=False) for entry in wanted
    )


def test_messages_in_parts_and_a_developer(ask, oracle):
    parts = [{"type": "text", "text": "What does "}, {"type": "text", "text": "the fox say?"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    output = expected(oracle, ASKED["greedy"][1])
    assert ask(messages, **GREEDY).choices[0].message.content == output.outputs[0].text


def test_many_at_once(ask, oracle):
    def one(seed):
        return ask(seed=seed, max_tokens=10).choices[0].message.content

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(16)))
    assert found == [expected(oracle, {"seed": seed, "max_tokens": 10}).outputs[0].text for seed in range(16)]


def test_fields_that_ask_for_nothing_may_be_there(ask):
    nothing = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "service_tier": "auto", "user": "me"}
    nothing |= {"store": True, "metadata": {"a": "b"}, "prediction": {"type": "content", "content": "x"}}
    nothing |= {"reasoning_effort": "low", "verbosity": "high", "safety_identifier": "a"}
    nothing |= {"prompt_cache_key": "a", "prompt_cache_retention": "24h"}
    message = {"role": "user", "content": "What does the fox say?"}
    bare = ask([message], seed=3, max_tokens=4)
    full = ask([message | {"name": "bob"}], seed=3, max_tokens=4, **nothing)
    assert (full.choices, full.usage.prompt_tokens) == (bare.choices, bare.usage.prompt_tokens)


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_and_its_stream_are_those_of_the_engine(ask, oracle, name):
    options, params = ASKED[name]
    output = expected(oracle, params)
    wanted = [(completion.text, completion.finish_reason) for completion in output.outputs]
    num_prompt, num_new = len(output.prompt_token_ids), sum(len(each.token_ids) for each in output.outputs)
    found = ask(**options)
    assert [(choice.message.content, choice.finish_reason) for choice in found.choices] == wanted
    assert [choice.index for choice in found.choices] == list(range(params.get("n", 1)))
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (num_prompt, num_new)
    assert found.usage.total_tokens == num_prompt + num_new
    assert {choice.message.role for choice in found.choices} == {"assistant"}
    chunks = list(ask(**options, stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == wanted
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    *others, last = chunks
    assert (last.choices, last.usage.completion_tokens) == ([], num_new)
    assert all(chunk.usage is None for chunk in others)
