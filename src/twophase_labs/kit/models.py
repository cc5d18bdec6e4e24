"""The models of the labs, loaded once per process. transformers is imported when a model is asked for, not before."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from twophase_features.model_store.prepare import DEFAULT_MODEL, resolve_model


@cache
def smollm2() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct as transformers runs it, in float32 on the CPU, and its tokenizer.

    Raises:
        ModelFolderError: It is neither prepared nor can it be made here.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    folder = resolve_model(DEFAULT_MODEL)
    logging.disable_progress_bar()  # its bar would be recorded in the notebook
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    finally:
        logging.enable_progress_bar()
    return model.eval().requires_grad_(False), AutoTokenizer.from_pretrained(folder)


@cache
def random_llama(seed: int = 0, width: int = 64, num_layers: int = 1, num_heads: int = 2, num_kv_heads: int = 2) -> Any:
    """A Llama (`width` wide, 100 tokens, 2,048 positions) with random weights and no end token.

    The weights are large enough for its likeliest tokens to vary; it is built like SmolLM2 and is called like it.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=2048,
        initializer_range=0.3,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval().requires_grad_(False)


_folders: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def saved(model: Any) -> Path:
    """A folder with this model of transformers, as the engine reads it."""
    from transformers.utils import logging

    _folders.append(tempfile.TemporaryDirectory(prefix="twophase-model-"))
    logging.disable_progress_bar()  # it would be recorded in the notebook
    try:
        model.save_pretrained(_folders[-1].name)
    finally:
        logging.enable_progress_bar()
    return Path(_folders[-1].name)


def transformers_greedy(
    model: Any, ids: Int[Tensor, " T"], num_new: int, eos_id: int | None = None, use_cache: bool = True
) -> Int[Tensor, " T_new"]:
    """Prompt and greedy continuation as transformers' own `generate` gives them."""
    options: dict[str, Any] = {} if eos_id is None else {"eos_token_id": eos_id}
    return model.generate(
        ids[None],
        attention_mask=torch.ones_like(ids)[None],  # or it warns that it cannot tell padding from text
        max_new_tokens=num_new,
        do_sample=False,
        use_cache=use_cache,
        pad_token_id=0,
        **options,
    )[0]


def is_decided(model: Any, text: Int[Tensor, " T"], num_new: int) -> bool:
    """Whether each of the last `num_new` tokens wins clearly, so that no rounding (a cache's, a kernel's) decides."""
    rows = model(text[None, :-1]).logits[0, len(text) - 1 - num_new :]
    best = rows.topk(2, -1).values
    return bool((best[:, 0] - best[:, 1] > 1e-3).all())
