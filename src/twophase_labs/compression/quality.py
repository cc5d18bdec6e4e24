"""What a learner's rounding does to the engine's predictions, texts and speed."""

import math
import time
from collections.abc import Mapping, Sequence
from functools import cache

from jaxtyping import Float
from torch import Tensor

from twophase import LLM, SamplingParams
from twophase_labs.compression.calibrated import NUM_CALIBRATION
from twophase_labs.compression.changed_model import PLACES, matrix
from twophase_labs.compression.own_engine import OwnModel, Rounded, running
from twophase_labs.compression.step_bytes import open_engine
from twophase_tools.bench.perplexity import more_prose, prose, step_logits
from twophase_tools.bench.quality_drift import Drift, drift_between
from twophase_tools.bench.quality_probes import ONE_DIGIT, add_up
from twophase_tools.bench.quality_verdict import FOUR_BITS, Bounds, Verdict, drift_verdicts

PROMPT = "The lighthouse keeper climbed the stairs and"
NUM_NEW, NUM_ROUNDS = 16, 2


def stored_bytes(own: Rounded) -> float:
    """Codes of their bits, and 16 bits for each scale, minimum and factor."""
    num_values = sum(each.numel() for each in (own.weight.scales, own.weight.minima, own.factors) if each is not None)
    return own.weight.codes.numel() * own.weight.bits / 8 + 2 * num_values


def megabytes(own: OwnModel) -> float:
    """Of the linear layers, stored in their bits; of a matrix that was not rounded, in 16."""
    rounded, plain = own.matrices.values(), [matrix(place).numel() for place in PLACES if place not in own.matrices]
    return (sum(map(stored_bytes, rounded)) + 2 * sum(plain)) / 1e6


@cache
def text_ids(num_tokens: int, is_calibration: bool = False) -> tuple[int, ...]:
    """The beginning of the text on which quality is measured; or what follows in the other one the tokens that AWQ
    looks at."""
    tokenizer = open_engine("float32").tokenizer
    assert tokenizer is not None
    if is_calibration:
        return tuple(tokenizer.encode(more_prose())[NUM_CALIBRATION:][:num_tokens])
    return tuple(tokenizer.encode(prose())[:num_tokens])


@cache
def logits_before(num_tokens: int, is_calibration: bool = False) -> Sequence[Float[Tensor, "L V"]]:
    """Of SmolLM2 as it is, in float32."""
    return tuple(step_logits(open_engine("float32"), text_ids(num_tokens, is_calibration)))


def perplexity_ratio(own: OwnModel, num_tokens: int = 512) -> float:
    """After over before, in float32."""
    return math.exp(drift(own, num_tokens).log_ratio.mean)


def drift(own: OwnModel, num_tokens: int, dtype: str = "float32", is_calibration: bool = False) -> Drift:
    """From SmolLM2 as it is, in float32, to the engine with these matrices."""
    token_ids, before = text_ids(num_tokens, is_calibration), logits_before(num_tokens, is_calibration)
    with running(own, dtype) as llm:
        return drift_between(before, step_logits(llm, token_ids), token_ids)


def gate_of(own: OwnModel, num_tokens: int = 512) -> list[Verdict]:
    """What the engine's gate says of predictions with these matrices in bfloat16, within its bounds for 4 bits."""
    return list(drift_verdicts(drift(own, num_tokens, "bfloat16"), FOUR_BITS))


def gate_of_cache(kv_cache_dtype: str, num_tokens: int = 512) -> list[Verdict]:
    """What the gate says of SmolLM2 in float32 with K and V in another format, within its bounds for 8 bits."""
    token_ids = text_ids(num_tokens)
    llm = LLM(
        device="cpu", dtype="float32", attention_backend="torch", kv_cache_dtype=kv_cache_dtype, num_kv_blocks=128,
        max_num_seqs=8,
    )  # fmt: skip
    found = drift_between(logits_before(num_tokens), step_logits(llm, token_ids), token_ids)
    return list(drift_verdicts(found, Bounds()))


def tokens_per_s(variants: Mapping[str, OwnModel | None]) -> tuple[dict[str, float], dict[str, str]]:
    """Of one stream, the best of `NUM_ROUNDS` in turns, and what it wrote after `PROMPT`; see `running`."""
    best, wrote = dict.fromkeys(variants, 0.0), {}
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
    for _ in range(NUM_ROUNDS):
        for name, own in variants.items():
            with running(own) as llm:
                start_s = time.perf_counter()
                (output,) = llm.generate([PROMPT], params, use_tqdm=False)
                best[name] = max(best[name], NUM_NEW / (time.perf_counter() - start_s))
                wrote[name] = output.outputs[0].text
    return best, wrote


def sums_right(own: OwnModel | None) -> str:
    """One of the gate's probes: how many one-digit sums are right; see `running`."""
    with running(own) as llm:
        outcomes = add_up(llm, ONE_DIGIT)
    return f"{sum(each.passed for each in outcomes)} of {len(outcomes)} one-digit sums"
