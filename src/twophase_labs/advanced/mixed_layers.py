"""A small random model whose layers are of different kinds, in the engine: the blocks that each kind holds."""

from collections.abc import Sequence
from typing import Any

import torch

from twophase import LLM, SamplingParams
from twophase_features.windows.windowed_cache import WindowedCache
from twophase_labs.kit.models import saved

VOCAB = 131


def engine(layers: Sequence[str], window: int, block_size: int, num_blocks: int = 64) -> LLM:
    """Gemma 3 with random weights, a layer for each of `layers`: 'sliding' sees a window, 'full' sees everything."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config: Any = Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=len(layers),
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        layer_types=[f"{kind}_attention" for kind in layers],
        sliding_window=window,
        query_pre_attn_scalar=8,
        eos_token_id=2,
        pad_token_id=0,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Gemma3ForCausalLM(config).eval()
    return LLM(
        saved(model),
        skip_tokenizer_init=True,
        block_size=block_size,
        num_kv_blocks=num_blocks,
        max_num_seqs=1,
        max_num_batched_tokens=2 * block_size,
        device="cpu",
    )


def blocks_held(llm: LLM, num_prompt: int, num_tokens: int) -> dict[int, dict[str, int]]:
    """One request from its prompt to so many tokens: at some lengths, the blocks in use of each kind of layer."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens - num_prompt + 2, ignore_eos=True)
    llm.engine.add_request("one", {"prompt_token_ids": [3 + i % (VOCAB - 3) for i in range(num_prompt)]}, params)
    held = {}
    while llm.engine.has_unfinished_requests():
        llm.engine.step()
        sequences = llm.scheduler.sequences
        length = next(iter(sequences.values())).num_computed_tokens if sequences else 0
        if length and length % num_prompt == 0:
            cache = llm.scheduler.cache
            assert isinstance(cache, WindowedCache)
            held[length] = cache.num_in_use_by_kind()
    return held
