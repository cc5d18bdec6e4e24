"""SmolLM2 for the guided-decoding section: its tokens as texts, and its logits one step at a time."""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from twophase.model.tokenizer import Tokenizer
from twophase_features.model_store.prepare import DEFAULT_MODEL, resolve_model
from twophase_labs.kit.models import smollm2

EXAMPLE = 'City: Oslo\nRecord: {"city": "Oslo", "inhabitants": 700000}\n\n'


def record_prompt(city: str) -> str:
    """One example, and the city that is asked for."""
    return f"{EXAMPLE}City: {city}\nRecord: "


@cache
def token_texts() -> tuple[str, ...]:
    """The text of every token, '' for special ones. Half a character comes out as U+FFFD, which no machine reads."""
    tokenizer = Tokenizer.from_folder(resolve_model(DEFAULT_MODEL))
    return tuple(tokenizer.decode([token_id]) for token_id in range(tokenizer.vocab_size))


def end_id() -> int:
    _, tokenizer = smollm2()
    return int(tokenizer.eos_token_id)


def next_logits_after(prompt: str) -> Callable[[Sequence[int]], Float[Tensor, " V"]]:
    """A function of the answer's ids so far: the model's logits for the next one. It keeps K and V between calls."""
    from transformers import DynamicCache

    model, tokenizer = smollm2()
    prompt_ids = tokenizer(prompt).input_ids
    past = DynamicCache()

    def next_logits(answer_ids: Sequence[int]) -> Float[Tensor, " V"]:
        new = [*prompt_ids, *answer_ids][past.get_seq_length() :]
        return model(torch.tensor([new]), past_key_values=past, logits_to_keep=1).logits[0, -1]

    return next_logits
