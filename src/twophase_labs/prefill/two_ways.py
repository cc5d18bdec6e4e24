"""The opening of lab 2: the same text read at once, and token by token, by transformers."""

from typing import Any

import torch
from torch import Tensor

from twophase_labs.machine import kernels as kernels  # before transformers: it decides how kernels run

PAGE_OF_TEXT = (
    "A prompt is a text that is known before the work begins. Nothing in it has to be waited for, so the model may "
    "look at all of it in one go: every word at the same time, each with the words before it in view. The answer is "
    "another matter. Its words are chosen one after the other, and the second cannot be chosen before the first. "
)


def text_ids(tokenizer: Any, num_tokens: int) -> Tensor:
    """The first tokens of a page of prose."""
    return tokenizer(4 * PAGE_OF_TEXT, return_tensors="pt").input_ids[0, :num_tokens]


@torch.no_grad()
def read_at_once(model: Any, ids: Tensor) -> Tensor:
    """Logits [T, V] of one pass over all tokens."""
    return model(ids[None]).logits[0]


@torch.no_grad()
def read_one_by_one(model: Any, ids: Tensor) -> Tensor:
    """The same logits from T passes of one token each, with transformers' KV cache, so that nothing is done twice."""
    cache, rows = None, []
    for token in ids:
        output = model(token[None, None], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0])
    return torch.cat(rows)
