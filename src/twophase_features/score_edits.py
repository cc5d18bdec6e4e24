"""Changes of the scores before a token is drawn: biases, penalties, tokens that are not allowed or banned."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, UInt8, UInt32
from torch import Tensor
from torch.nn.functional import pad

from twophase.core.request import SamplingParams
from twophase.engine.runner import Parcel
from twophase.engine.sampler import SampleRow

Arrays = dict[str, Any]
Given = Callable[[str], Tensor]  # an edit's array, by the name of its part


class Bias(NamedTuple):
    """A request's `logit_bias` on the host: `values` are added to the logits of the tokens."""

    token_ids: Int64[np.ndarray, "B"]
    values: Float32[np.ndarray, "B"]


def bias_of(params: SamplingParams) -> Bias:
    """The bias of a request that has a `logit_bias`."""
    token_ids, values = zip(*params.logit_bias, strict=True)
    return Bias(np.array(token_ids, np.int64), np.array(values, np.float32))


def arrays(rows: Sequence[SampleRow]) -> Arrays:
    """The arrays that `edited` needs on the device, for each kind of edit that a row has."""
    found: Arrays = {}
    for name, argument_of, arrays_of, _ in EDITS:
        arguments = {r: each for r, row in enumerate(rows) if (each := argument_of(row)) is not None}
        if arguments:
            found |= {f"{name} {part}": array for part, array in arrays_of(arguments).items()}
    return found


def edited(logits: Float[Tensor, "R V"], given: Parcel) -> Float[Tensor, "R V"]:
    """A copy of the logits with the edits of each row."""
    scores = logits.clone()
    for name, _, _, apply in EDITS:
        if f"{name} rows" in given.places:
            apply(scores, partial(_part, given, name))
    return scores


def _part(given: Parcel, name: str, part: str) -> Tensor:
    return given[f"{name} {part}"]


def _bias(biases: Mapping[int, Bias]) -> Arrays:
    values = np.concatenate([bias.values for bias in biases.values()])
    return _places({r: bias.token_ids for r, bias in biases.items()}) | {"values": values}


def _repetition(rows: Mapping[int, SampleRow]) -> Arrays:
    counts = [len(row.token_ids) for row in rows.values()]
    penalties = np.array([row.params.repetition_penalty for row in rows.values()], np.float32)
    return _places({r: row.token_ids for r, row in rows.items()}) | {"values": np.repeat(penalties, counts)}


def _output(rows: Mapping[int, SampleRow]) -> Arrays:
    """Presence and frequency penalties on the tokens of each completion so far."""
    counted = {r: np.unique(np.asarray(row.token_ids[-row.position :]), return_counts=True) for r, row in rows.items()}
    penalties = [
        row.params.presence_penalty + row.params.frequency_penalty * counted[r][1].astype(np.float32)
        for r, row in rows.items()
    ]
    values = -np.concatenate(penalties).astype(np.float32)
    return _places({r: ids for r, (ids, _) in counted.items()}) | {"values": values}


def _words(allowed: Mapping[int, UInt32[np.ndarray, "W"]]) -> Arrays:
    words = np.zeros((len(allowed), max(map(len, allowed.values()))), np.uint32)
    for packed, given in zip(words, allowed.values(), strict=True):
        packed[: len(given)] = given
    return {"rows": np.array(list(allowed)), "octets": words.astype("<u4", copy=False).view(np.uint8)}


def _add(scores: Float[Tensor, "R V"], given: Given) -> None:
    scores[given("rows"), given("ids")] += given("values")


def _penalise_repetition(scores: Float[Tensor, "R V"], given: Given) -> None:
    """Repetition penalty (CTRL, arXiv:1909.05858, section 4.1)."""
    at, penalty = (given("rows"), given("ids")), given("values")
    seen = scores[at]
    # A token seen twice is written twice with the same value, not penalised twice.
    scores[at] = torch.where(seen > 0, seen / penalty, seen * penalty)


def _constrain(scores: Float[Tensor, "R V"], given: Given) -> None:
    """-inf for every token that is not allowed, as is every token beyond the last word."""
    rows, allowed = given("rows"), unpack(given("octets"), scores.shape[1])
    forbidden = pad(~allowed, (0, scores.shape[1] - allowed.shape[1]), value=True)
    scores[rows] = scores[rows].masked_fill_(forbidden, -math.inf)


def _ban(scores: Float[Tensor, "R V"], given: Given) -> None:
    scores[given("rows"), given("ids")] = -math.inf


# In the order of application: an edit's name; its argument for a row, or None; the arrays of all rows' arguments, by
# row; and what changes the scores in place by them.
EDITS: tuple[tuple[str, Callable[[SampleRow], Any], Callable[[Any], Arrays], Callable[[Tensor, Given], None]], ...] = (
    ("bias", lambda row: row.bias, _bias, _add),
    ("repetition", lambda row: row if row.params.repetition_penalty != 1 else None, _repetition, _penalise_repetition),
    ("output", lambda row: row if row.params.penalises_output and row.position else None, _output, _add),
    ("allowed", lambda row: row.allowed, _words, _constrain),
    ("banned", lambda row: row.banned or None, lambda banned: _places(banned), _ban),
)


def _places(ids_of_row: Mapping[int, Collection[int] | Int64[np.ndarray, "B"]]) -> Arrays:
    """Row and token id of all token ids."""
    ids = [x if isinstance(x, np.ndarray) else np.fromiter(x, np.int64, len(x)) for x in ids_of_row.values()]
    return {"rows": np.repeat(list(ids_of_row), [len(each) for each in ids]), "ids": np.concatenate(ids)}


def unpack(octets: UInt8[Tensor, "R B"], num_bits: int) -> Bool[Tensor, "R V"]:
    """The first `num_bits` bits of each row, all of them if there are fewer, the lowest bit of a byte first.

    Masks travel to a GPU packed, which is an eighth of the bytes. On a CPU NumPy's unpacking takes a fiftieth of the
    time of shifting in torch.
    """
    if octets.device.type == "cpu":
        bits = np.unpackbits(octets.numpy(), axis=1, bitorder="little")
        return torch.from_numpy(bits[:, :num_bits]).bool()
    shifts = torch.arange(8, dtype=torch.uint8, device=octets.device)
    return (octets[:, :, None] >> shifts & 1).flatten(1)[:, :num_bits].bool()
