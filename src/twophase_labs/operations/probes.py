"""Quality by slices, measured on SmolLM2: needles in short and long texts, and JSON that parses."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache, lru_cache

import torch

from twophase import LLM, SamplingParams
from twophase_features.structured_outputs.params import StructuredOutputs
from twophase_labs.decode import needle
from twophase_tools.bench.quality_tasks import EXAMPLE, FIELDS, MAX_OBJECT_TOKENS, ORDERS, SCHEMA, parsed

SHORT, MEDIUM, LONG = 100, 400, 1000  # tokens of hay
Q_MAX = {8: 127, 4: 7, 3: 3}
TEMPERATURE = 0.6
PER_ORDER = 3


@cache
def needles(num_hay: int, bits: int) -> tuple[int, int]:
    """Needles found of those asked for, with K and V in so many bits, a scale per token and head; 16: as they are."""

    def stored(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / Q_MAX[bits]
        return (x / scale).round() * scale

    with torch.no_grad():
        answers = needle.ask(needle.read(num_hay), None if bits == 16 else stored)
    return sum(answer.found for answer in answers), len(answers)


@dataclass(frozen=True)
class Asked:
    """Questions for the needles, each a prompt of its own: tokens and seconds to the first token are means."""

    num_found: int
    num_needles: int
    num_tokens: float
    ttft_s: float


@cache
def asked(num_hay: int, num_best: int | None) -> Asked:
    """Ask for each needle, with the whole text in the prompt, or with the sentences that `best_sentences` finds."""
    llm = LLM(max_model_len=2048, num_kv_blocks=256, enable_prefix_caching=False)
    assert llm.tokenizer is not None
    text = llm.tokenizer.decode(needle.haystack(num_hay).tolist())
    params = SamplingParams(temperature=0, max_tokens=6)
    outputs = []
    for said, _ in needle.NEEDLES:
        context = text if num_best is None else " ".join(best_sentences(text, said, num_best))
        prompt = f"{context}\nQuestion: What was said before?\nAnswer: {said}"
        outputs += llm.generate([prompt], params, use_tqdm=False)
    secrets = [secret for _, secret in needle.NEEDLES]
    found = [each.outputs[0].text.strip().startswith(secret) for each, secret in zip(outputs, secrets, strict=True)]
    num_tokens = sum(len(each.prompt_token_ids) for each in outputs)
    ttft_s = sum(each.metrics.ttft_s or 0.0 for each in outputs)
    return Asked(sum(found), len(found), num_tokens / len(found), ttft_s / len(found))


def best_sentences(text: str, question: str, num_best: int) -> list[str]:
    """Those that share most words with the question, in the text's order; a word counts the less the more sentences
    have it."""
    sentences = [each.strip() for each in re.findall(r"[^.]+\.", text)]
    words = [set(re.findall(r"\w+", each.lower())) for each in sentences]
    counts = Counter(word for each in words for word in each)
    wanted = set(re.findall(r"\w+", question.lower()))
    scores = [sum(1 / counts[word] for word in each & wanted) for each in words]
    chosen = sorted(range(len(sentences)), key=lambda i: -scores[i])[:num_best]
    return [sentences[i] for i in sorted(chosen)]


@lru_cache(maxsize=1)  # a laptop of 8 GB has room for one
def _llm(quantization: str | None) -> LLM:
    return LLM(quantization=quantization, max_model_len=512, num_kv_blocks=256)


@cache
def valid_json(quantization: str | None, guided: bool = False) -> tuple[int, int]:
    """Answers that are an object of the schema, of those asked for at a temperature of 0.6."""
    llm = _llm(quantization)
    names = f"{', '.join(FIELDS[:-1])} and {FIELDS[-1]}"

    def asked(order: str) -> dict[str, str]:
        return {"role": "user", "content": f"Write this as a JSON object with the fields {names}: {order}"}

    chats = [[asked(EXAMPLE[0]), {"role": "assistant", "content": EXAMPLE[1]}, asked(order)] for order in ORDERS]
    grammar = StructuredOutputs(json=SCHEMA) if guided else None
    params = SamplingParams(
        temperature=TEMPERATURE, max_tokens=MAX_OBJECT_TOKENS, n=PER_ORDER, seed=1, structured_outputs=grammar
    )
    completions = [each for output in llm.chat(chats, params, use_tqdm=False) for each in output.outputs]
    valid = [each.finish_reason == "stop" and parsed(each.text) is not None for each in completions]
    return sum(valid), len(valid)
