"""Features in pairs on a real model: policy, drafts, window, swapping and chunks, drawn at random.

Every request gets the tokens that it gets alone, no block is lost, and no drafter fails.
"""

import logging
import random

import pytest

from tests.engine.engines import check_idle, prompt_of, tokens_of
from tests.model.tiny import make_folder
from twophase import LLM, SamplingParams, SpeculativeConfig
from twophase.scheduling.policy import PriorityPolicy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.deadlines import DeadlinePolicy
from twophase_features.policies.request_level import DynamicPolicy, StaticPolicy
from twophase_features.policies.whole_prompts import ContinuousPolicy, PrefillFirstPolicy
from twophase_features.windows.sliding_window import SlidingWindow

LONGEST = 64
WINDOW = SlidingWindow(12, 3)
PROMPT = prompt_of(1, 40)["prompt_token_ids"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder("llama", tmp_path_factory.mktemp("pairs"), eos_token_id=None)[0]


def draw_options(rng: random.Random, folder) -> dict:
    method = rng.choice([None, "ngram", "draft_model", "draft_model"])
    is_windowed, is_chunked = rng.random() < 0.5, rng.random() < 0.7
    options = {
        "policy": rng.choice(
            [
                PriorityPolicy(),
                ChunkedPrefillPolicy(max_tokens=rng.randint(4, 12)),
                ContinuousPolicy(),
                PrefillFirstPolicy(max_stalled_steps=rng.choice([None, 1])),
                StaticPolicy(batch_size=3),
                DynamicPolicy(batch_size=3, timeout_s=0),
                DeadlinePolicy(max_tokens=rng.choice([None, 9])),
            ]
        ),
        "num_kv_blocks": rng.choice([17, 20, 40]),
        "max_num_batched_tokens": rng.choice([8, 24]) if is_chunked else LONGEST,
        "enable_chunked_prefill": is_chunked,
        **rng.choice([{"preemption_mode": "swap"}, {}, {"enable_prefix_caching": rng.random() < 0.8}]),
    }
    if is_windowed:
        options |= {"sliding_window": WINDOW.window, "num_attention_sinks": WINDOW.num_sinks}
    if method is not None:
        model = str(folder) if method == "draft_model" else None
        options["speculative_config"] = SpeculativeConfig(
            method=method, model=model, num_speculative_tokens=rng.randint(1, 5), disable_when_losing=False
        )
    return options


def draw_requests(rng: random.Random) -> list[tuple[dict, SamplingParams]]:
    """Prompts that share beginnings, some of them whole blocks; greedy, or drawn with a seed."""
    requests = []
    for _ in range(6):
        shared = PROMPT[: rng.choice([0, 4, 8, 16, 16, 32])]
        own = [rng.randint(3, 120) for _ in range(rng.choice([0, 0, 1, 5, 12]))]
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.0, 0.8]),
            seed=rng.randint(0, 9),
            max_tokens=rng.randint(1, 18),
            ignore_eos=True,
        )
        requests.append(({"prompt_token_ids": shared + own or [5]}, params))
    return requests


def open_llm(folder, **options) -> LLM:
    common = {"block_size": 4, "skip_tokenizer_init": True, "device": "cpu", "attention_backend": "torch"}
    return LLM(folder, **common, max_num_seqs=4, max_model_len=LONGEST, **options)


def check_seed(seed: int, folder, caplog) -> None:
    rng = random.Random(seed)
    options, requests = draw_options(rng, folder), draw_requests(rng)
    window = {name: options[name] for name in ("sliding_window", "num_attention_sinks") if name in options}
    alone = open_llm(folder, num_kv_blocks=40, enable_prefix_caching=False, **window)
    expected = [tokens_of(alone.generate(*request, use_tqdm=False)[0]) for request in requests]
    llm = open_llm(folder, **options)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            outputs = llm.generate([p for p, _ in requests], [params for _, params in requests], use_tqdm=False)
            assert [tokens_of(output) for output in outputs] == expected, f"seed {seed}: {options}"
            check_idle(llm.engine)
    assert "drafting failed" not in caplog.text, f"seed {seed}: {options}"
    most = getattr(options["policy"], "max_tokens", None) or options["max_num_batched_tokens"]
    assert max(sum(n for *_, n in step.chunks) for step in llm.engine.trace) <= max(most, 4), f"seed {seed}: {options}"


@pytest.mark.parametrize("seed", range(8))
def test_requests_get_the_tokens_that_they_get_alone(folder, caplog, seed):
    check_seed(seed, folder, caplog)


@pytest.mark.full
def test_60_more_pairs(folder, caplog):
    for seed in range(1000, 1060):
        check_seed(seed, folder, caplog)
