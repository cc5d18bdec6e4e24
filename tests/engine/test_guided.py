"""Guided decoding: what ends by 'stop' has the form asked for, whoever else is in the batch and whatever happens.

Random weights wander through everything that is allowed, so they try a grammar harder than a trained model does. The
oracles are `jsonschema` and `re`.
"""

import functools
import itertools
import json
import re
import sys
from datetime import date

import jsonschema
import numpy as np
import pytest

from tests.engine.engines import check_idle, make_engine, prompt_of, run, tokens_of
from tests.engine.random_schemas import random_schema
from tests.engine.tokenizers_for_tests import KINDS, byte_level, make_text_folder
from tests.model.tiny import load_model
from tests.mutation import KillTable, Mutant
from twophase import SamplingParams, StructuredOutputs
from twophase.core.errors import InvalidRequestError
from twophase.engine import engine as engine_module
from twophase.engine.detokenizer import Detokenizer
from twophase_features.structured_outputs import guidance as guidance_module
from twophase_features.structured_outputs.guidance import Guidance, GuidanceError
from twophase_features.structured_outputs.schema_rules import FORMATS

NUM_PADDING = 7  # rows of the embedding that no token belongs to, as many models have
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def guided(seed=0, *, temperature=1.0, max_tokens=300, **options) -> SamplingParams:
    kinds = {kind: options.pop(kind) for kind in ("json", "regex", "choice") if kind in options}
    outputs = StructuredOutputs(**kinds)
    return SamplingParams(
        structured_outputs=outputs, seed=seed, temperature=temperature, max_tokens=max_tokens, **options
    )


def load_guided_model(kind: str, folder):
    codec = KINDS[kind]()
    sizes = {"vocab_size": codec.vocab_size + NUM_PADDING, "max_position_embeddings": 2048}
    return load_model(make_text_folder(folder, codec, **sizes)[0])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_guided_model("byte-level", tmp_path_factory.mktemp("guided"))


@functools.cache
def guidance_of(tokenizer_json: str, end_id: int) -> Guidance:
    """One for all tests: each has a worker process."""
    return Guidance(lambda: tokenizer_json, frozenset([end_id]))


def guided_engine(model, codec=None, **options):
    codec = codec or byte_level()
    guidance = guidance_of(codec.tokenizer.to_str(), codec.end_id)
    return make_engine(
        model, codec=codec, eos=frozenset([codec.end_id]), guidance=guidance,
        **{"num_blocks": 4000, "max_model_len": 1024, "max_num_seqs": 16, "budget": 64} | options,
    )  # fmt: skip


def is_valid(text: str, outputs: StructuredOutputs) -> bool:
    """By the oracles."""
    if outputs.regex is not None:
        return re.fullmatch(outputs.regex, text) is not None
    if outputs.choice is not None:
        return text in outputs.choice
    try:
        jsonschema.validate(json.loads(text), json.loads(outputs.json), jsonschema.Draft202012Validator)
    except (json.JSONDecodeError, jsonschema.ValidationError):
        return False
    return True


def check_outputs(outputs, params) -> int:
    """Every completion that stopped is valid; every other one says that it was cut. Tells how many stopped."""
    num_stopped = 0
    for output, each in zip(outputs, params, strict=True):
        for completion in output.outputs:
            assert completion.finish_reason in ("stop", "length"), completion.error
            if completion.finish_reason == "stop":
                num_stopped += 1
                assert is_valid(completion.text, each.structured_outputs), (completion.text, each.structured_outputs)
            else:
                num_tokens = len(output.prompt_token_ids) + len(completion.token_ids)
                assert len(completion.token_ids) == each.max_tokens or num_tokens == 1024
    return num_stopped


REGEXES = (
    "a?b?", "[a-z]{3}", r"\d{1,3}(\.\d{1,3}){3}", "(yes|no), (sir|madam)", "(ab|cd)*", "[^a]{2}", "日本|naïve", r"(?i)hello",
    r"\$\{[^}]{0,5}\}", r"^x+y$", "[😀-😎]{1,3}", r"\w{1,9}@\w{1,9}\.(com|org)", r"\n\t\\", "a{3,}", r"[\w.]{2,9}/\d\s\S{2}",
)  # fmt: skip
CHOICES = (
    ["yes", "no", "yes and no"], ["a", "ab", "abc"], ["日本", "naïve café", "😀"], ["\0\x01", "\x7f"],
    ['"q"\\n', "a\nb\t", " /x/i", "<|end|>"],
)  # fmt: skip


class TestForms:
    @pytest.mark.parametrize("num_schemas", [20, pytest.param(200, marks=pytest.mark.full)])
    def test_random_schemas(self, model, num_schemas):
        schemas = [random_schema(seed) for seed in range(num_schemas)]
        for schema in schemas:
            jsonschema.Draft202012Validator.check_schema(schema)
        params = [guided(seed, json=schema, max_tokens=200) for seed, schema in enumerate(schemas)]
        outputs = run(guided_engine(model), [prompt_of(seed, 3) for seed in range(num_schemas)], params)
        num_stopped = check_outputs(outputs, params)
        assert 0.7 * num_schemas < num_stopped < num_schemas, "both ways to end should occur"
        texts = {output.outputs[0].text for output in outputs}
        assert len(texts) > 0.7 * num_schemas

    def test_regexes_and_choices(self, model):
        asked = [{"regex": regex, "temperature": t, "max_tokens": 60} for regex in REGEXES for t in (0, 1, 1)]
        asked += [{"choice": choices} for choices in CHOICES for _ in range(8)]
        params = [guided(seed, **each) for seed, each in enumerate(asked)]
        outputs = run(guided_engine(model), [prompt_of(seed, 5) for seed in range(len(params))], params)
        assert check_outputs(outputs, params) > 0.8 * len(params)
        texts = {output.outputs[0].text for output in outputs[-8 * len(CHOICES) :]}
        assert len(texts) > sum(map(len, CHOICES)) / 2

    def test_byte_fallback(self, tmp_path):
        codec = KINDS["byte fallback"]()
        engine = guided_engine(load_guided_model("byte fallback", tmp_path), codec)
        asked = [{"json": PERSON}, {"regex": "the (é|日)+ fox!"}, {"choice": ["the", " the", "日本 "]}]
        params = [guided(seed, **each) for seed in range(8) for each in asked]
        outputs = run(engine, [{"prompt_token_ids": codec.encode("the fox")}] * len(params), params)
        assert check_outputs(outputs, params) > 0.9 * len(params)

    def test_no_special_token_and_no_padding_inside(self, model):
        params = [guided(seed, regex="(?s).{30}", skip_special_tokens=False) for seed in range(8)]
        for output in run(guided_engine(model), [prompt_of(seed, 4) for seed in range(8)], params):
            *inside, last = tokens_of(output)
            assert last == byte_level().end_id
            assert max(inside) < byte_level().vocab_size
            assert byte_level().end_id not in inside


class TestEnds:
    def test_a_complete_output_may_only_end(self, model):
        for max_tokens, reason in ((2, "length"), (3, "stop")):  # no token is two of these
            output = run(guided_engine(model), [prompt_of(0, 4)], guided(regex="[QZ]{2}", max_tokens=max_tokens))[0]
            assert len(output.outputs[0].text) == 2
            assert output.outputs[0].finish_reason == reason
            assert output.outputs[0].stop_reason is None

    def test_stop_strings_end_only_what_is_complete(self, model):
        params = [guided(seed, regex="(ab|cd)+", stop=["b", "cd"], max_tokens=40) for seed in range(40)]
        outputs = run(guided_engine(model), [prompt_of(seed, 4) for seed in range(40)], params)
        check_outputs(outputs, params)
        completions = [output.outputs[0] for output in outputs]
        by_string = [completion for completion in completions if completion.stop_reason == "cd"]
        assert len(by_string) > 5
        assert all(re.fullmatch("(cd)?(ab)+|(cd)+", completion.text) for completion in by_string)
        assert not any(completion.stop_reason == "b" for completion in completions)

    @pytest.mark.parametrize("is_text", [True, False])
    def test_stop_ids_end_only_what_is_complete(self, model, is_text):
        """The id of a token that the text may have, and one beyond the tokenizer."""
        stop_id = byte_level().encode("x")[0] if is_text else byte_level().vocab_size + NUM_PADDING - 1
        params = [guided(seed, regex="[xy]{2,40}", stop_token_ids=[stop_id]) for seed in range(20)]
        outputs = run(guided_engine(model), [prompt_of(seed, 4) for seed in range(20)], params)
        assert check_outputs(outputs, params) == 20
        assert {output.outputs[0].stop_reason for output in outputs} == {None, stop_id}
        assert not is_text or all(set(output.outputs[0].text) == {"y"} for output in outputs)

    def test_a_dead_end_fails_alone(self, model):
        stop_ids = [i for i in range(byte_level().vocab_size) if byte_level().decode([i]).startswith("x")]
        params = [guided(0, regex="yx", stop_token_ids=stop_ids), guided(0, regex="yx")]
        dead, good = run(guided_engine(model), [prompt_of(0, 4)] * 2, params)
        assert dead.outputs[0].finish_reason == "error"
        assert "nothing but a stop token could continue it" in dead.outputs[0].error
        assert (good.outputs[0].text, good.outputs[0].finish_reason) == ("yx", "stop")

    def test_a_stop_string_that_may_not_end_is_text(self):
        """'x|ab' and 'xa|ba' may not end there, 'xab|ab' may: what was passed over is in the text, and overlaps count."""
        detok = Detokenizer(byte_level(), SamplingParams(stop=("ab", "ba")), [], {"xab"}.__contains__)
        assert [detok.append(byte_level().encode(c)[0]) for c in "xabab"] == [None, None, None, None, "ab"]
        assert detok.text == "xab"

    def test_a_guided_text_completes_no_character_of_the_prompt(self):
        first, second = map(byte_level().byte_id, "é".encode())
        for may_end, text in ((None, "é"), (lambda _: True, "\ufffd")):
            detok = Detokenizer(byte_level(), SamplingParams(), [first], may_end)
            detok.append(second)
            detok.finish()
            assert detok.text == text


MIXED = [
    guided(1, json=PERSON, max_tokens=80),
    SamplingParams(seed=2, max_tokens=30, ignore_eos=True),
    guided(3, regex="[a-c]{5,40}", temperature=0, max_tokens=80),
    guided(4, choice=["one", "two", "three"], top_k=3, repetition_penalty=1.3, max_tokens=80),
    SamplingParams(seed=5, temperature=0, max_tokens=30, ignore_eos=True),
    guided(6, regex="[a-z0-9 ]{12,20}", top_p=0.9, n=3, max_tokens=30),
    guided(7, json=PERSON, min_p=0.2, max_tokens=12),
    guided(8, regex=r"\d{20}", logprobs=2, max_tokens=80),
]
MIXED_PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((5, 19, 9, 14, 30, 11, 3, 26))]
PRESSURE = {"num_blocks": 40, "prefix_caching": False, "max_model_len": 128}


def serve(model, params=MIXED, prompts=MIXED_PROMPTS, engine_class=engine_module.Engine, **setting):
    engine = guided_engine(model, engine_class=engine_class, **setting)
    outputs = run(engine, prompts, params)
    completions = [[(c.token_ids, c.text, c.finish_reason) for c in output.outputs] for output in outputs]
    preempted = {request_id for step in engine.trace for request_id, _ in step.preempted}
    return completions, [i for i, each in enumerate(params) if each.structured_outputs and str(i) in preempted]


@pytest.fixture(scope="module")
def alone(model):
    """What each of the mixed requests gets when it has the engine for itself."""
    return [serve(model, [params], [prompt])[0][0] for params, prompt in zip(MIXED, MIXED_PROMPTS, strict=True)]


class TestCompany:
    def test_completions_have_a_state_each(self, alone):
        texts = [text for _, text, _ in alone[5]]
        assert len(set(texts)) == 3
        assert all(reason == "stop" and is_valid(text, MIXED[5].structured_outputs) for _, text, reason in alone[5])

    @pytest.mark.parametrize("swap", [0, 64], ids=["recompute", "swap"])
    def test_preempted_equals_unpreempted(self, model, alone, swap):
        completions, preempted = serve(model, num_host_blocks=swap, **PRESSURE)
        assert len(preempted) >= 2
        assert completions == alone

    def test_logprobs_are_the_models_own(self, model):
        """At the first position nothing has been chosen yet: guided or not, the model says the same of each token."""
        free, held = (
            run(guided_engine(model), [prompt_of(0, 6)], params)[0].outputs[0].logprobs[0]
            for params in (SamplingParams(temperature=0, max_tokens=1, logprobs=20), guided(regex="[0-9]", temperature=0, logprobs=20))
        )  # fmt: skip
        assert held.top == free.top
        assert held.token_id != free.token_id
        assert held.logprob <= free.logprob


def chain_of(length: int):
    refs = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": refs | {f"d{length}": {"type": "boolean"}}}


def is_date(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


class TestFormats:
    def test_every_day_that_there_is(self):
        """Of each kind of year, all days that a month might have; Python knows which of them there are."""
        pattern = re.compile(FORMATS["date"]["pattern"])
        for year in ("0000", "0001", "0004", "0100", "0400", "1900", "2000", "2023", "2024", "2100", "9999"):
            texts = [f"{year}-{month:02}-{day:02}" for month in range(14) for day in range(33)]
            assert [text for text in texts if pattern.fullmatch(text)] == [text for text in texts if is_date(text)]

    @pytest.mark.parametrize(
        ("name", "good", "bad"),
        [
            ("date", ["2024-02-29"], ["2023-02-29", "2024-2-9"]),
            ("time", ["02:04:59Z", "23:59:59.25+01:30"], ["02:04:60Z", "24:00:00Z", "02:04:59"]),
            ("date-time", ["2024-02-29T02:04:59Z"], ["2023-02-29T02:04:59Z", "2024-02-29T02:04:60Z"]),
            ("hostname", ["a.b-c.de"], ["-a.de", f"{'a' * 64}.de", ".".join(["abc"] * 64)]),
        ],
    )
    def test_what_no_reader_accepts_is_not_written(self, name, good, bad):
        schema = {"properties": {"format": {"type": "string", "format": name}}, "required": ["format"]}
        codec = byte_level()
        grammar = guidance_of(codec.tokenizer.to_str(), codec.end_id).compile(guided(json=schema))
        accepted = [text for text in good + bad if grammar.accepts(json.dumps({"format": text}))]
        assert accepted == good

    def test_data_is_no_schema(self, model):
        params = [guided(json={"const": {"format": "date"}})]
        (output,) = run(guided_engine(model), [prompt_of(0, 4)], params)
        assert json.loads(output.outputs[0].text) == {"format": "date"}


class TestDoor:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"json": {"$ref": "#/$defs/none"}}, "does not exist"),
            ({"json": {"anyOf": [{"type": "object", "minProperties": 2}]}}, "json cannot be enforced: minProperties=2 with 0 names in .required"),
            ({"json": {"$ref": "#"}}, r"structured_outputs.json cannot be enforced: \w+\.$"),
            ({"json": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}}, r"exclusiveMinimum=0 with maximum=0.5, less than 1 away.*minimum=0.005"),
            ({"json": {"$ref": "#there", "$defs": {"a": {"$anchor": "there"}}}}, r"\$ref='#there'; refer to a place in the schema"),
            ({"json": {"$defs": {"a": {"$id": "b"}}}}, r"\$id='b' inside of a schema"),
            ({"json": {"patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "null"}}}}, r"/\^a/ and /b\$/ are not disjoint"),
            ({"regex": r"(a)\1"}, "backreferences are not supported"),
            ({"regex": r"a[^\s\S]b"}, "structured_outputs.regex cannot be enforced"),
            ({"regex": r"\bfoo"}, "structured_outputs.regex cannot be enforced"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_enforced_is_refused_by_name(self, model, given, message):
        engine = guided_engine(model)
        with pytest.raises(InvalidRequestError, match=message):
            engine.add_request("a", prompt_of(0, 4), guided(**given))
        assert not engine.has_unfinished_requests()
        check_idle(engine)

    @pytest.mark.skipif(sys.platform != "linux", reason="not run here: no limits on time and memory")
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"json": {"type": "integer", "multipleOf": 99_999_989}}, r"compiling it is too much work: it takes longer than 1 s of processor"),
            ({"json": chain_of(2500)}, "too much work: it ends its process, with -11"),
        ],
        ids=["multiple", "chain"],
    )  # fmt: skip
    def test_what_takes_too_much_is_refused_by_name(self, model, given, message):
        engine = guided_engine(model)
        with pytest.raises(InvalidRequestError, match=f"structured_outputs.* cannot be enforced: .*({message})"):
            engine.add_request("a", prompt_of(0, 4), guided(**given))
        assert not engine.has_unfinished_requests()

    def test_without_a_tokenizer_or_an_end(self, model):
        with pytest.raises(InvalidRequestError, match="need a tokenizer, but the engine has no tokenizer"):
            make_engine(model).add_request("a", prompt_of(0, 4), guided(regex="a"))
        endless = make_engine(model, guidance=Guidance(byte_level().tokenizer.to_str, frozenset()))
        with pytest.raises(InvalidRequestError, match=r"end-of-text token, and its folder names none"):
            endless.add_request("a", prompt_of(0, 4), guided(regex="a"))
        broken = make_engine(model, guidance=Guidance(lambda: '{"model": {"type": "none"}}', frozenset([0])))
        with pytest.raises(InvalidRequestError, match="llguidance cannot use this model's tokenizer"):
            broken.add_request("a", prompt_of(0, 4), guided(regex="a"))

    def test_much_that_is_simple_is_served(self, model):
        several = [{"json": chain_of(150)}, {"choice": [f"v{i}" for i in range(10_000)]}]
        params = [guided(0, max_tokens=400, **each) for each in several]
        assert check_outputs(run(guided_engine(model), [prompt_of(0, 4)] * 2, params), params) == 2


# -- mutants


def unlimited(module, codec):
    """A `Guidance` of a module, or of a mutant of it, that tries outputs in this process and without limits."""
    guidance = module.Guidance(codec.tokenizer.to_str, frozenset([codec.end_id]))
    guidance._worker = guidance._load()
    guidance._worker.call = lambda function, *args: function(*args)
    module._vocabulary = guidance._vocabulary
    return guidance


def check_guide(module) -> None:
    """A guide told everything each time says the same as one told step by step, as one told twice, and as the rules."""
    codec = byte_level()
    end_id, prompt = codec.end_id, [1, 2, 3]
    (stop_id,) = codec.encode("b")
    params = guided(regex="a(b|c){2}b?", stop_token_ids=[stop_id])
    grammar = unlimited(module, codec).compile(params)

    def ids_of(allowed):
        bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")
        return {codec.decode([i]) if i != end_id else "end" for i in bits.nonzero()[0].tolist()}

    stepwise = grammar.constraint()
    for text, expected in {"": {"a"}, "a": {"c"}, "ac": {"c"}, "acc": {"b", "end"}}.items():
        so_far = prompt + [codec.encode(c)[0] for c in text]
        told = [guide.allowed_after(so_far, 3) for guide in (stepwise, stepwise, grammar.constraint())]
        assert [ids_of(allowed) for allowed in told] == [expected] * 3
    assert [text for text in ("abb", "accb", "ab", "abbbb", "x", "") if grammar.accepts(text)] == ["abb", "accb"]
    broken = grammar.constraint()
    with pytest.raises(Exception, match="llguidance: ") as caught:
        broken.allowed_after([*prompt, codec.encode("q")[0]], 3)
    assert type(caught.value).__name__ == GuidanceError.__name__


def check_json(module) -> None:
    """No second way to write a property's name, and nothing loosened by the schema itself."""
    codec = byte_level()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}}
    guidance = unlimited(module, codec)
    grammar = guidance.compile(guided(json=schema | {"x-guidance": {"whitespace_flexible": True}}))
    good = ['{"a": 1}', '{"a": 1, "b": null}', '{"b": null}', "{}"]
    bad = [
        '{"a": null}',
        r'{"\u0061": null}',
        r'{"a": 1, "\u0061": null}',
        '{"a": 1, "a": null}',
        '{ "a": 1}',
        '{"a":1}',
    ]
    assert [text for text in good + bad if grammar.accepts(text)] == good
    for wrong in ({"uniqueItems": True, "x-guidance": {"lenient": True}}, {"type": "object", "minProperties": 2}):
        with pytest.raises(InvalidRequestError):
            guidance.compile(guided(json=wrong))


def check_exclusive_bounds(module) -> None:
    """Every number that is accepted lies within its bounds; where the library would let a bound through, it is refused."""
    codec = byte_level()
    guidance = unlimited(module, codec)
    near = [-1.5, -1, -0.5, 0, 0.25, 0.5, 1, 1.5]
    num_refused = 0
    for low, high in itertools.combinations(near, 2):
        for names in itertools.product(("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            bounds = dict(zip(names, (low, high), strict=True))
            try:
                grammar = guidance.compile(guided(json={"type": "number"} | bounds))
            except InvalidRequestError:
                num_refused += 1
                continue
            for text in ("-1.5", "-1", "-1.0", "-0.5", "-0", "0", "0.0", "0.25", "0.5", "1", "1.0", "1.5"):
                x = float(text)
                is_inside = low <= x <= high and not (
                    x in (low, high) and bounds.get(f"exclusive{'Minimum' if x == low else 'Maximum'}") == x
                )
                assert is_inside or not grammar.accepts(text), f"{text} under {bounds}"
    assert 0 < num_refused < 40
    apart = {
        "$defs": {"a": {"allOf": [{"maximum": 1.5}]}},
        "exclusiveMinimum": 1,
        "$ref": "#/$defs/a",
        "type": "number",
    }
    listed = {"x y": [apart, {"exclusiveMinimum": 1}], "allOf": [{"$ref": "#/x%20y/1"}, {"maximum": 1.5}]}
    for schema in (apart, {"properties": {"x": {"anyOf": [apart]}}, "$defs": apart["$defs"]}, listed):
        with pytest.raises(InvalidRequestError, match=r"exclusiveMinimum=1 with maximum=1.5, less than 1 away"):
            guidance.compile(guided(json=schema))
    elsewhere = {"properties": {"a": {"exclusiveMinimum": 1, "type": "number"}, "b": {"maximum": 1.5}}}
    assert guidance.compile(guided(json=elsewhere)).accepts('{"a": 1.2, "b": 1}')
    for factors in ((65537, 65536), (3, 0.000000001)):
        with pytest.raises(InvalidRequestError, match=r"multipleOf=.* of one number"):
            guidance.compile(guided(json={"type": "integer", "allOf": [{"multipleOf": each} for each in factors]}))


def preempted_check(model, alone):
    """For an engine module: under pressure the outputs are those of each request alone."""

    def check(module) -> None:
        completions, preempted = serve(model, engine_class=module.Engine, **PRESSURE)
        assert len(preempted) >= 2
        assert completions == alone

    return check


GUIDE_CHECKS = {"guide": check_guide, "json": check_json, "bounds": check_exclusive_bounds}
MUTANTS = [
    ("state not advanced", "guidance", "self._matcher.consume_tokens(new)", "pass", "guide"),
    ("state advanced twice", "guidance", "self._num_read += len(new)", "pass", "guide"),
    ("only the newest token read", "guidance", "token_ids[num_prompt_tokens + self._num_read :]", "token_ids[max(num_prompt_tokens + self._num_read, len(token_ids) - 1) :]", "guide"),
    ("the prompt read", "guidance", "token_ids[num_prompt_tokens + self._num_read :]", "token_ids[self._num_read :]", "guide"),
    ("state shared", "guidance", "Guide(self._matcher.deep_copy()", "Guide(self._matcher", "guide"),
    ("an error lets it end", "guidance", "        if matcher.is_error():\n            raise G", "        if False:\n            raise G", "guide"),
    ("stop ids as text", "guidance", "        for token_id in self._end_token_ids:", "        for token_id in ():", "guide"),
    ("a beginning accepted", "guidance", " and matcher.is_accepting()", "", "guide"),
    ("escaped names", "guidance", "'\"\\\\bfnrt'", "'\"\\\\bfnrtu'", "json"),
    ("white space by x-guidance", "guidance", '    "whitespace_flexible": False,\n', "", "json"),
    ("lenient by x-guidance", "guidance", '    "lenient": False,', "", "json"),
    ("exclusive bounds let through", "schema_rules", "if bound in near", "if None in near", "bounds"),
    ("bounds from below only", "schema_rules", "(math.floor, math.ceil)", "(math.floor,)", "bounds"),
    ("bounds of other parts", "schema_rules", "stack += joined.get(id(each), ())", "pass", "bounds"),
    ("multiples modulo 2**32", "schema_rules", ">= MAX_MULTIPLE", "< 0", "bounds"),
    ("minProperties by repetition", "schema_rules", "at_least > max(1, num_required)", "at_least > max(2, num_required)", "json"),
]  # fmt: skip


@pytest.mark.parametrize("check", GUIDE_CHECKS.values(), ids=GUIDE_CHECKS)
def test_the_rules(check):
    check(guidance_module)


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=[name for name, *_ in MUTANTS])
def test_mutants(mutant):
    name, module, old, new, check = mutant
    through = "twophase_features.structured_outputs.guidance" if module == "schema_rules" else None
    package = "twophase_features.structured_outputs"
    KillTable.record(Mutant(name, f"{package}.{module}", old, new, through), GUIDE_CHECKS[check])


PREEMPTION_MUTANTS = [
    (
        "state not rebuilt after preemption",
        "metrics",
        "requests[victim.request.request_id].metrics.num_preemptions += 1",
        "state = requests[victim.request.request_id]\n"
        "        state.metrics.num_preemptions += 1\n"
        "        guide = state.completions[victim.index].constraint\n"
        "        _ = guide is None or guide._matcher.reset()",
    ),
    ("state follows the chunk", "model_run", "constraint.allowed_after(token_ids, num", "constraint.allowed_after(token_ids[sequence.num_computed_tokens :], num"),
    ("state of completion 0", "model_run", "sampling_params, state.completions[sequence.index]", "sampling_params, state.completions[0]"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", PREEMPTION_MUTANTS, ids=[name for name, *_ in PREEMPTION_MUTANTS])
def test_preemption_mutants(model, alone, mutant):
    name, module, old, new = mutant
    planted = Mutant(name, f"twophase.engine.{module}", old, new, "twophase.engine.engine")
    KillTable.record(planted, preempted_check(model, alone))
