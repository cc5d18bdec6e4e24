"""Model folders against transformers: each means the same here, or is refused by name.

`python -m tests.fuzz.folders` tries all and prints a table. A case is a copy of a small folder with some of its files
changed: a key of config.json, where a token stands, the chat template, the files of the weights.
"""

import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from tests.engine.tokenizers_for_tests import byte_level, make_text_folder
from tests.fuzz.rule import FindingError, refusing_clearly
from tests.model.tiny import LLAMA3_ROPE, config_readers
from twophase import LLM, SamplingParams
from twophase.core.errors import TwophaseError
from twophase.model.config import load_config
from twophase.model.tokenizer import Tokenizer

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "mixtral", "qwen3-moe")
SMALL = {"hidden_size": 32, "num_attention_heads": 4, "head_dim": 8, "num_key_value_heads": 2}
PROMPT = [3 + 7 * i % 100 for i in range(20)]  # longer than the windows
TEXTS = ("a <|x|> b", "x<|end|>y <s>z</s>", "<|x|><|y|> q", "the quick<|x|>brown")
CHAT = [
    {"role": "system", "content": "be <b>brief</b> & kind", "name": None},
    {"role": "user", "content": "Zoë's"},
    {"role": "assistant", "content": "yes", "thinking": "hm", "parts": [1, 2.5, True, {"b": 1, "a": []}]},
]
ODD_JSON = (None, True, 0, -1, 0.5, 10**30, "", [], [1], [["x"]], {}, {"x": 1}, {"rope_type": "yarn"})
ODD_BYTES = (b"", b"{", b"{}", b"[]", b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"a": NaN}', b"[" * 10**5, b"0" * 5000)
SINGLE, INDEX, TOKENS = "model.safetensors", "model.safetensors.index.json", "tokenizer_config.json"
FILES_OF_ANYTHING = {
    "weights": ("config.json", "generation_config.json", SINGLE),
    "tokens": ("tokenizer.json", TOKENS, "special_tokens_map.json", "added_tokens.json"),
    "templates": ("chat_template.jinja", "additional_chat_templates/default.jinja"),
}
NEXT = byte_level().vocab_size  # the id of the first token that tokenizer.json lacks
ABSENT = "absent"  # in place of a key's value


class Case(NamedTuple):
    """A folder: of which kind, what it is called, and the files that are other than its kind's (None: not there)."""

    kind: str
    name: str
    files: dict[str, Any]


class Folders:
    """Tries cases in copies of one folder for each family."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for family in FAMILIES:
            make_text_folder(folder / family, family=family, vocab_size=NEXT + 4, eos_token_id=2, **SMALL)
        self.tally: Counter[tuple[str, str]] = Counter()

    def cases(self) -> Iterator[Case]:
        for family in FAMILIES:
            config = json.loads((self._folder / family / "config.json").read_bytes())
            for changes in _changes(config):
                changed = {key: value for key, value in (config | changes).items() if value != ABSENT}
                yield Case(family, f"config.json with {changes}", {"config.json": changed})
            for ends in (None, {}, {"eos_token_id": None}, {"eos_token_id": [5, 6]}, {"eos_token_id": 7}):
                yield Case(family, f"generation_config.json {ends}", {"generation_config.json": ends})
        for kind, names in FILES_OF_ANYTHING.items():
            for name in names:
                yield from (Case(kind, f"{name} {content[:9]!r}", {name: content}) for content in ODD_BYTES)
        for name, files in _weights(load_file(self._folder / "llama" / SINGLE)).items():
            yield Case("weights", name, files)
        yield from (Case("tokens", str(files), files) for files in _tokens())
        roles = {"bos_token": "<s>", "cls_token": "<|x|>", "mask_token": "m", "image_token": "<|y|>"}
        for template in TEMPLATES:
            yield Case("templates", str(template), {TOKENS: roles | {"chat_template": template}})
        for files in TEMPLATE_FILES:
            yield Case("templates", str(files), {TOKENS: {"chat_template": "old"}} | files)

    def try_one(self, case: Case) -> None:
        """Raises FindingError if it means something else here, or is refused by anything but a clear error."""
        folder, what = self._folder / "changed", f"{case.kind}: {case.name}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._folder / (case.kind if case.kind in FAMILIES else "llama"), folder)
        for name, content in case.files.items():
            _write(folder / name, content)
        ask, oracle = (_text, _their_text) if case.kind in ("tokens", "templates") else (_model, _their_model)
        try:
            with refusing_clearly(what):
                ours, numbers = ask(folder)
        except TwophaseError:
            self.tally[case.kind, "refused"] += 1
            return
        try:
            theirs, their_numbers = oracle(folder)
        except Exception as error:
            raise FindingError(f"{what}: opened, but transformers says {error!r:.200}") from error
        if ours != theirs or not torch.allclose(numbers, their_numbers, atol=1e-3, equal_nan=True):
            raise FindingError(f"{what}: {ours}, {numbers} here, {theirs}, {their_numbers} in transformers")
        self.tally[case.kind, "equal"] += 1

    def table(self) -> str:
        """How many of each kind had each outcome."""
        kinds = dict.fromkeys(kind for kind, _ in self.tally)
        rows = [[kind, self.tally[kind, "equal"], self.tally[kind, "refused"]] for kind in kinds]
        return "\n".join(f"{kind:10} {equal:4} equal {refused:4} refused" for kind, equal, refused in rows)


def _model(folder: Path) -> tuple[Any, torch.Tensor]:
    """Greedy tokens and what ends a text; log-probabilities of a prompt."""
    options = {"max_model_len": 64, "num_kv_blocks": 64, "block_size": 4, "skip_tokenizer_init": True}
    greedy = SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=0, ignore_eos=True)
    with LLM(folder, dtype="float32", **options) as llm:
        (output,) = llm.generate({"prompt_token_ids": PROMPT}, greedy, use_tqdm=False)
    said = torch.tensor([each.logprob for each in output.prompt_logprobs[1:]])
    return (list(output.outputs[0].token_ids), load_config(folder).eos_token_ids), said


def _their_model(folder: Path) -> tuple[Any, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = list(PROMPT)
    with torch.inference_mode():
        for _ in range(6):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0]
            ids.append(int(logits[-1].argmax()))
    said = logits.log_softmax(-1)[range(len(PROMPT) - 1), PROMPT[1:]]
    ends = model.generation_config.eos_token_id
    return (ids[len(PROMPT) :], frozenset({ends} if isinstance(ends, int) else ends or ())), said


def _text(folder: Path) -> tuple[Any, torch.Tensor]:
    """Ids of texts, the tokens that have a role, and a conversation."""
    mine = Tokenizer.from_folder(folder)
    chat = mine.render_chat(CHAT) if mine.chat_template is not None else ""
    return ([mine.encode(text) for text in TEXTS], mine.special_tokens, chat), torch.zeros(0)


def _their_text(folder: Path) -> tuple[Any, torch.Tensor]:
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    has_chat = theirs.chat_template is not None
    chat = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True) if has_chat else ""
    return ([theirs(text)["input_ids"] for text in TEXTS], theirs.special_tokens_map, chat), torch.zeros(0)


def _changes(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each key that is read: dropped, of any value, as text, in capitals; and the spellings of other versions."""
    source = config_readers()
    for key in sorted(key for key in config if f'"{key}"' in source):
        yield from ({key: value} for value in (ABSENT, *ODD_JSON, str(config[key])))
        yield {key: ABSENT, key.upper(): config[key]}
    bare = {"rope_parameters": ABSENT}
    linear, llama3 = {"type": "linear", "factor": 4.0}, {**LLAMA3_ROPE, "original_max_position_embeddings": None}
    switched = {"use_sliding_window": True, "sliding_window": 12, "layer_types": None}
    yield from (
        bare | {"rope_theta": 500.0},
        bare | {"rope_theta": 5e3, "rope_local_base_freq": 5e2},
        bare | {"rope_scaling": linear, "rope_theta": 500.0},
        bare | {"rope_scaling": linear | {"rope_type": "linear"}, "rope_theta": 500.0},
        bare | {"rope_scaling": LLAMA3_ROPE},
        bare | {"rope_scaling": {"type": "yarn", "factor": 2.0}},
        {"rope_scaling": linear},
        {"rope_parameters": {"rope_type": "default"}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
        {"rope_parameters": llama3},
        {"rope_parameters": {key: value for key, value in llama3.items() if value is not None}},
        {"dtype": None, "torch_dtype": "float16"},
        {"transformers_version": "4.37.2", "_name_or_path": "x", "use_cache": False, "new_key": [1]},
        {"layer_types": ABSENT, "sliding_window_pattern": 2},
        {"layer_types": ["sliding_attention"] * config["num_hidden_layers"], "sliding_window": 12},
        {"sliding_window": 12},
        switched | {"max_window_layers": 0},
        switched | {"max_window_layers": 1},
        {"num_local_experts": ABSENT, "num_experts": config.get("num_local_experts", 6)},
        {"num_experts": 5, "num_local_experts": 6},
        {"model_type": "phi3"},
        {"partial_rotary_factor": 0.5},
        {"tie_word_embeddings": not config["tie_word_embeddings"]},
    )


def _weights(tensors: dict[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    def stored(tensors: dict[str, torch.Tensor]) -> bytes:
        return bytes(save(tensors, {"format": "pt"}))

    first = {name: each for name, each in tensors.items() if ".0." in name}
    second = {name: each for name, each in tensors.items() if name not in first}
    index = {
        "metadata": {},
        "weight_map": dict.fromkeys(first, "a.safetensors") | dict.fromkeys(second, "b.safetensors"),
    }
    shards = {"a.safetensors": stored(first), "b.safetensors": stored(second), INDEX: index}
    others = {"b.safetensors": stored({name: -each for name, each in second.items()})}
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    return {
        "in two files": {SINGLE: None} | shards,
        "beside others with an index": shards | others,
        "in two files, of which one is missing": {SINGLE: None} | shards | {"b.safetensors": None},
        "none": {SINGLE: None},
        "cut": {SINGLE: stored(tensors)[:9000]},
        "bfloat16": {SINGLE: stored({name: each.bfloat16() for name, each in tensors.items()})},
        "integers": {SINGLE: stored({name: each.to(torch.int8) for name, each in tensors.items()})},
        "without a layer": {SINGLE: stored(second)},
        "without their prefix": {SINGLE: stored({name.removeprefix("model."): each for name, each in tensors.items()})},
        "with frequencies": {SINGLE: stored(tensors | extra)},
    }


def _tokens() -> Iterator[dict[str, Any]]:
    """Where added and special tokens stand, and how."""

    def listed(*tokens: Any, first: int = NEXT, **others: Any) -> dict[str, Any]:
        return {"added_tokens_decoder": {str(first + place): token for place, token in enumerate(tokens)}} | others

    x, y = ({"content": f"<|{name}|>", "special": True, "normalized": False} for name in "xy")
    plain, record, both = x | {"special": False}, {"__type": "AddedToken", **x}, ["<|x|>", "<|y|>"]
    roles = {"bos_token": "<s>", "cls_token": "</s>", "mask_token": "<|x|>", "pad_token": None, "image_token": "<|y|>"}
    flags = ("lstrip", "rstrip", "single_word", "normalized")
    yield from ({TOKENS: listed(x | {flag: True}, y | {flag: True, "special": False})} for flag in flags)
    configs: tuple[dict[str, Any], ...] = (
        listed(x, y, eos_token="<|x|>"),
        listed(plain, y),
        listed(plain, sep_token="<|x|>"),
        listed(x, first=NEXT + 1),
        listed({"content": "<|end|>", "lstrip": True, "special": True}, first=0),
        listed("<|x|>"),
        {"added_tokens_decoder": {"x": x}},
        roles,
        listed(x, **roles),
        {"extra_special_tokens": both},
        {"additional_special_tokens": both, "extra_special_tokens": []},
        {"extra_special_tokens": {"video_token": "<|x|>", "boi": "<|y|>"}},
        {"extra_special_tokens": "<|x|>"},
        {"eos_token": record, "video_token": record},
        {"eos_token": {"special": True}},
        {"eos_token": 5},
        {"split_special_tokens": True, "eos_token": "<|end|>"},
    )
    yield from ({TOKENS: config} for config in configs)
    older = {"added_tokens.json": {"<|x|>": NEXT, "<|y|>": NEXT + 1}}
    yield from (older, older | {TOKENS: {"unk_token": "<|x|>"}}, {"added_tokens.json": {"<|x|>": NEXT + 2}})
    yield {"special_tokens_map.json": {"eos_token": x}, TOKENS: {"eos_token": "<s>"}}
    yield older | {"special_tokens_map.json": {"eos_token": "z"}, TOKENS: listed(x)}


TEMPLATES = (
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% set x = 1 %}{%- generation -%} {% set x = 2 %}{{ x }} {%- endgeneration %}{{ x }}",
    "{% generation %}never ended",
    "{% for m in messages %}\n  {% if loop.first %}{% continue %}{% endif %}\n{{ m.role }}{% break %}\n{% endfor %}\n",
    "{{ messages | tojson }}{{ messages[1].content | tojson(ensure_ascii=True) }}",
    "{{ messages[2].parts | tojson(indent=2) }}{{ messages[2] | tojson(separators=(',', ':'), sort_keys=True) }}",
    "{{ strftime_now('%Y') }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ unknown }}",
    "{{ raise_exception('roles must alternate') }}",
    "{% for m in messages %}{{ m.name is defined }}{{ m.reasoning_content }}{{ m.thinking }}{% endfor %}",
    "{{ bos_token }}{{ cls_token }}{{ image_token }}{{ mask_token }}{{ pad_token }}{{ eos_token }}x",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ dict(a=1) }}",
    "{{ dict.fromkeys(['a']) }}{{ messages[0] | items | list }}{{ messages | map(attribute='role') | join(',') }}",
    "{% macro f(m) %}[{{ m.role }}]{% endmacro %}{% for m in messages %}{{ f(m) }}{% endfor %}\r\n end",
    "{{ messages.append(1) }}",
    "{{ messages[0].content.__class__ }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{% include 'other' %}",
    5,
    [{"name": "default", "template": "a{{ bos_token }}"}, {"name": "tool_use", "template": "b"}],
)
TEMPLATE_FILES: tuple[dict[str, Any], ...] = (
    {"chat_template.jinja": "c\r\nd"},
    {"chat_template.jinja": "c", "additional_chat_templates/rag.jinja": "d"},
    {"chat_template.jinja": "c", "additional_chat_templates/default.jinja": "d"},
)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if content is not None:
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def main() -> int:
    """Try every case; print what was found, and the table. The exit status is 1 if anything was."""
    with tempfile.TemporaryDirectory() as folder:
        folders, found = Folders(Path(folder)), []
        for case in folders.cases():
            try:
                folders.try_one(case)
            except FindingError as finding:
                found.append(str(finding))
    print(*found, folders.table(), f"{folders.tally.total()} folders, {len(found)} findings", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
