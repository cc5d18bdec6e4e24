"""Changes of the scores before a token is drawn: biases, penalties, tokens that are not allowed or banned."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, UInt32
from torch import Tensor

from twophase.core.request import SamplingParams
from twophase.engine.sampler import SampleRow

WORD_BITS = 32  # tokens per word of `SampleRow.allowed`


class Bias(NamedTuple):
    """A request's `logit_bias` on the host: `values` are added to the logits of the tokens."""

    token_ids: Int64[np.ndarray, "B"]
    values: Float[Tensor, "B"]


def bias_of(params: SamplingParams) -> Bias:
    """The bias of a request that has a `logit_bias`."""
    token_ids, values = zip(*params.logit_bias, strict=True)
    return Bias(np.array(token_ids, np.int64), torch.tensor(values, dtype=torch.float32))


def edited(logits: Float[Tensor, "R V"], rows: Sequence[SampleRow]) -> Float[Tensor, "R V"]:
    """A copy of the logits with the edits of each row; at least one row has an edit."""
    scores = logits.clone()
    for edit, argument_of in EDITS:
        arguments = {r: each for r, row in enumerate(rows) if (each := argument_of(row)) is not None}
        if arguments:
            edit(scores, arguments)
    return scores


def _add_bias(scores: Float[Tensor, "R V"], biases: Mapping[int, Bias]) -> None:
    at = _places({r: bias.token_ids for r, bias in biases.items()}, scores.device)
    scores[at] += torch.cat([bias.values for bias in biases.values()]).to(scores)


def _penalise_repetition(scores: Float[Tensor, "R V"], rows: Mapping[int, SampleRow]) -> None:
    """Repetition penalty (CTRL, arXiv:1909.05858, section 4.1)."""
    at = _places({r: row.token_ids for r, row in rows.items()}, scores.device)
    penalty_of_row = scores.new_ones(scores.shape[0])
    penalty_of_row[list(rows)] = scores.new_tensor([row.params.repetition_penalty for row in rows.values()])
    seen, penalty = scores[at], penalty_of_row[at[0]]
    # A token seen twice is written twice with the same value, not penalised twice.
    scores[at] = torch.where(seen > 0, seen / penalty, seen * penalty)


def _penalise_output(scores: Float[Tensor, "R V"], rows: Mapping[int, SampleRow]) -> None:
    """Presence and frequency penalties on the tokens of each completion so far."""
    for r, row in rows.items():
        ids, counts = np.unique(np.asarray(row.token_ids[-row.position :]), return_counts=True)
        penalty = row.params.presence_penalty + row.params.frequency_penalty * torch.from_numpy(counts)
        scores[r, torch.from_numpy(ids)] -= penalty.to(scores)


def _constrain(scores: Float[Tensor, "R V"], allowed: Mapping[int, UInt32[np.ndarray, "W"]]) -> None:
    """-inf for every token that is not allowed."""
    words = np.zeros((len(allowed), -(-scores.shape[1] // WORD_BITS)), np.uint32)
    for packed, given in zip(words, allowed.values(), strict=True):
        packed[: len(given)] = given[: len(packed)]
    forbidden = ~unpack(words, scores.shape[1], scores.device)
    scores[list(allowed)] = scores[list(allowed)].masked_fill_(forbidden, -math.inf)


def _ban(scores: Float[Tensor, "R V"], banned: Mapping[int, Collection[int]]) -> None:
    scores[_places(banned, scores.device)] = -math.inf


# In the order of application: a function that changes rows of the scores in place, and its argument for a row, or None.
EDITS: tuple[tuple[Callable[[Tensor, Any], None], Callable[[SampleRow], Any]], ...] = (
    (_add_bias, lambda row: row.bias),
    (_penalise_repetition, lambda row: row if row.params.repetition_penalty != 1 else None),
    (_penalise_output, lambda row: row if row.params.penalises_output and row.position else None),
    (_constrain, lambda row: row.allowed),
    (_ban, lambda row: row.banned or None),
)


def _places(
    ids_of_row: Mapping[int, Collection[int] | Int64[np.ndarray, "B"]], device: torch.device
) -> tuple[Int[Tensor, "N"], Int[Tensor, "N"]]:
    """Indices (row, token id) of all token ids."""
    ids = [x if isinstance(x, np.ndarray) else np.fromiter(x, np.int64, len(x)) for x in ids_of_row.values()]
    row_ids = np.repeat(list(ids_of_row), [len(each) for each in ids])
    return torch.from_numpy(row_ids).to(device), torch.from_numpy(np.concatenate(ids)).to(device)


def unpack(words: UInt32[np.ndarray, "R W"], num_bits: int, device: torch.device) -> Bool[Tensor, "R V"]:
    """The first `num_bits` bits of each row, the lowest bit of a word first.

    Words travel to a GPU packed, which is an eighth of the bytes. On a CPU NumPy's unpacking takes a fiftieth of the
    time of shifting in torch.
    """
    octets = words.astype("<u4", copy=False).view(np.uint8)
    if device.type == "cpu":
        return torch.from_numpy(np.unpackbits(octets, axis=1, bitorder="little", count=num_bits)).bool()
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    return (torch.from_numpy(octets).to(device)[:, :, None] >> shifts & 1).flatten(1)[:, :num_bits].bool()
