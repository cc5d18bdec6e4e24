"""/v1/completions, /tokenize and /detokenize."""

import pytest

from tests.engine.tokenizers_for_tests import byte_level
from tests.server.conftest import joined
from twophase import SamplingParams

TEXTS = ["The quick brown fox", "naïve café", "日本"]


@pytest.fixture
def ask(client, chat_folder):
    def ask(prompt, **options):
        return client.completions.create(model=chat_folder.name, prompt=prompt, **options)

    return ask


def expected(oracle, prompts, **params):
    return oracle.generate(prompts, SamplingParams(**params), use_tqdm=False)


def texts_of(outputs):
    return [completion.text for output in outputs for completion in output.outputs]


def found_in(answer, streams):
    return [text for text, _ in joined(answer)] if streams else [choice.text for choice in answer.choices]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("kind", ["text", "texts", "ids", "lists of ids"])
def test_prompts_of_each_kind(ask, oracle, kind, streams):
    ids = [byte_level().encode(text) for text in TEXTS]
    prompt = {"text": TEXTS[0], "texts": TEXTS, "ids": ids[0], "lists of ids": ids}[kind]
    outputs = expected(oracle, TEXTS if "s" in kind[-1] and kind != "ids" else TEXTS[:1], seed=3, max_tokens=8)
    found = ask(prompt, seed=3, max_tokens=8, stream=streams)
    assert found_in(found, streams) == texts_of(outputs)


@pytest.mark.parametrize("streams", [False, True])
def test_the_choices_of_several_prompts(ask, oracle, streams):
    outputs = expected(oracle, TEXTS[:2], seed=4, n=2, max_tokens=5)
    found = ask(TEXTS[:2], seed=4, n=2, max_tokens=5, stream=streams)
    assert found_in(found, streams) == texts_of(outputs)
    if not streams:
        assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
        assert found.usage.prompt_tokens == sum(len(output.prompt_token_ids) for output in outputs)


def test_sixteen_tokens_by_default(ask):
    assert ask("The", temperature=0, extra_body={"ignore_eos": True}).usage.completion_tokens == 16


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_echo(ask, oracle, streams, as_ids):
    text = TEXTS[1]
    (output,) = expected(oracle, [text], seed=5, max_tokens=6)
    found = ask(byte_level().encode(text) if as_ids else text, seed=5, max_tokens=6, echo=True, stream=streams)
    assert found_in(found, streams) == [text + output.outputs[0].text]


def flat(parts):
    """The lists of several chunks' logprobs, one behind the other."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [entry for part in parts for entry in getattr(part, name)] for name in names}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_logprobs(ask, oracle, streams, echo):
    prompt, options = TEXTS[0], {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
    (output,) = expected(oracle, [prompt], logprobs=2, prompt_logprobs=2 if echo else None, **options)
    asked = {"temperature": 0, "max_tokens": 6, "extra_body": {"ignore_eos": True}, "logprobs": 2, "echo": echo}
    answer = ask(prompt, **asked, stream=streams)
    found = flat([c.choices[0].logprobs for c in answer] if streams else [answer.choices[0].logprobs])
    wanted = [*(output.prompt_logprobs or ()), *output.outputs[0].logprobs]
    token_ids = [*(output.prompt_token_ids if echo else ()), *output.outputs[0].token_ids]
    assert found["tokens"] == [oracle.tokenizer.decode([token_id], False) for token_id in token_ids]
    assert len(found["token_logprobs"]) == len(wanted)
    for logprob, tops, entry in zip(found["token_logprobs"], found["top_logprobs"], wanted, strict=True):
        if entry is None:
            assert (logprob, tops) == (None, None)
        else:
            assert logprob == pytest.approx(entry.logprob)
            assert max(tops.values()) == pytest.approx(max(logprob for _, logprob in entry.top))
            assert 1 <= len(tops) <= 3
    lengths = [len(token) for token in found["tokens"]]
    assert found["text_offset"] == [sum(lengths[:i]) for i in range(len(lengths))]


def test_usage_in_every_chunk_of_a_stream(ask):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *others, last = ask(TEXTS[0], max_tokens=5, extra_body={"ignore_eos": True}, stream=True, stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in others]
    assert counts == sorted(counts)
    assert counts[-1] == last.usage.completion_tokens == 5
    assert {chunk.usage.prompt_tokens for chunk in others} == {last.usage.prompt_tokens}
    *others, last = ask(TEXTS[0], max_tokens=3, stream=True, stream_options={"continuous_usage_stats": True})
    assert last.choices
    assert all(chunk.usage is None for chunk in (*others, last))


def test_tokenize_and_back(http, chat_folder):
    ids = byte_level().encode(TEXTS[1])
    found = http.post("/tokenize", json={"prompt": TEXTS[1]}).json()
    assert (found["tokens"], found["count"], found["max_model_len"]) == (ids, len(ids), 256)
    words = http.post("/tokenize", json={"prompt": "the fox", "return_token_strs": True}).json()["token_strs"]
    assert "".join(words) == "the fox"
    assert http.post("/tokenize", json={"model": chat_folder.name, "prompt": ""}).json()["tokens"] == []
    assert http.post("/detokenize", json={"tokens": ids}).json() == {"prompt": TEXTS[1]}
    chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]}).json()
    assert chat["tokens"] == byte_level().encode("user: hi\nassistant:")


def test_models(client, http, chat_folder):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == (chat_folder.name, "model", "twophase")
    assert client.models.retrieve(chat_folder.name) == model
    assert http.get("/v1/models/other").status_code == 404
