"""Outputs that call functions: their grammar, and how they are read while they grow."""

import pytest

from tests.engine.test_guided import guidance_of
from tests.engine.tokenizers_for_tests import byte_level
from twophase import SamplingParams, StructuredOutputs
from twophase.core.errors import InvalidRequestError
from twophase_features.structured_outputs.tool_calls import Call, ToolCalls, read_calls, written

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}},
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
}
FUNCTIONS = {"get_weather": WEATHER, "get_weather_2": {"type": "object", "properties": {}}, "tree": TREE}
PARIS, NOTHING = Call("get_weather", '{"city": "Paris"}'), Call("get_weather_2", "{}")
SPECIAL = Call("get_weather", '{"city": "}\\n</tool_call>\\n{} // # \\" <tool_call>"}')
NESTED = Call("tree", '{"root": {"next": {"next": {}}}}')


def joined(*calls):
    return "\n".join(map(written, calls))


def grammar_of(**options):
    codec = byte_level()
    calls = ToolCalls(**{"functions": FUNCTIONS} | options)
    params = SamplingParams(structured_outputs=StructuredOutputs(tool_calls=calls))
    return guidance_of(codec.tokenizer.to_str(), codec.end_id).compile(params)


GOOD = [(PARIS,), (NOTHING,), (SPECIAL,), (NESTED, PARIS, PARIS)]
BAD = {
    "another function": written(Call("get_time", "{}")),
    "arguments of another function": written(Call("get_weather_2", '{"city": "Paris"}')),
    "an argument that is not listed": written(Call("get_weather", '{"city": "Paris", "country": "France"}')),
    "a missing argument": written(Call("get_weather", "{}")),
    "no end": written(PARIS)[:-1],
    "text after a call": written(PARIS) + "!",
    "calls without a line between": written(PARIS) * 2,
}


@pytest.mark.parametrize("calls", GOOD)
@pytest.mark.parametrize("is_required", [False, True])
def test_calls_are_accepted(calls, is_required):
    assert grammar_of(is_required=is_required).accepts(joined(*calls))


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("is_required", [False, True])
def test_other_calls_are_not(name, is_required):
    assert not grammar_of(is_required=is_required).accepts(BAD[name])


@pytest.mark.parametrize("text", ["", "Hello!", "1 < 2\n<tool_cal", "<tool_call>"])
def test_text_is_accepted_unless_a_call_is_required(text):
    assert grammar_of().accepts(text)
    assert grammar_of().accepts(f"{text[:8]}\n{written(PARIS)}")
    assert not grammar_of(is_required=True).accepts(text)


@pytest.mark.parametrize("is_required", [False, True])
def test_an_answer_of_a_form_in_place_of_calls(is_required):
    grammar = grammar_of(is_required=is_required, answer=WEATHER | {"additionalProperties": False})
    answer = '{"city": "Paris"}'
    texts = [joined(PARIS, NOTHING), answer, "Hello!", "{}", f"{answer}\n{written(PARIS)}", written(Call("f", answer))]
    assert [grammar.accepts(text) for text in texts] == [True, not is_required, False, False, False, False]


@pytest.mark.parametrize("is_required", [False, True])
@pytest.mark.parametrize("max_calls", [1, 2])
def test_number_of_calls(is_required, max_calls):
    grammar = grammar_of(is_required=is_required, max_calls=max_calls)
    assert [grammar.accepts(joined(*[PARIS] * n)) for n in (1, 2, 3)] == [n <= max_calls for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"functions": {}}, "at least one function"),
        ({"functions": {"a b": WEATHER}}, "a function's name must match"),
        ({"functions": {"f": {"type": "string"}}}, "the parameters of f must be a JSON Schema of type 'object'"),
        ({"functions": {"f": {"type": "object", "x": {1}}}}, "this is not JSON"),
        ({"answer": "x"}, "the answer's form must be a JSON Schema"),
        ({"max_calls": 17}, "max_calls must be a whole number >= 1 and <= 16, got 17"),
    ],
)
def test_nonsense_is_refused(options, message):
    with pytest.raises(InvalidRequestError, match=message):
        ToolCalls(**{"functions": FUNCTIONS} | options)


def test_a_schema_that_cannot_be_enforced_is_refused_by_name():
    schema = {"type": "object", "properties": {"n": {"type": "number", "not": {}}}}
    with pytest.raises(InvalidRequestError, match=r"structured_outputs.tool_calls cannot be enforced: .*not"):
        grammar_of(functions={"f": schema})


@pytest.mark.parametrize("calls", [(), *GOOD])
@pytest.mark.parametrize("before", ["", "I look <tool_cal it up.\n"])
def test_an_output_reads_the_same_at_once_and_as_it_grows(calls, before):
    text = before + joined(*calls)
    assert read_calls(text) == (before, list(calls))
    last_text, last_calls = "", []
    for end in range(len(text) + 1):
        found, found_calls = read_calls(text[:end], is_last=end == len(text))
        assert found.startswith(last_text)
        assert [call.name for call in found_calls[: len(last_calls)]] == [call.name for call in last_calls]
        for call, last in zip(found_calls, last_calls, strict=False):
            assert call.arguments.startswith(last.arguments)
        last_text, last_calls = found, found_calls
    assert (last_text, last_calls) == (before, list(calls))


def test_an_output_that_was_cut():
    text = written(PARIS)
    assert read_calls(text[:-14]) == ("", [PARIS])
    assert read_calls(text[: text.index("Par") + 3]) == ("", [Call("get_weather", '{"city": "Par')])
    assert read_calls(text[: text.index("arguments")]) == ("", [])
    assert read_calls("so <tool_c") == ("so <tool_c", [])
    assert read_calls("so <tool_c", is_last=False) == ("so ", [])
