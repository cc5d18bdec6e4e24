"""One run of the model: chunks go forward, a token is drawn for each sampling row, and each chunk gets its result."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple, TypeVar

import torch

from twophase.core.errors import UnrecoverableError
from twophase.core.plan import Sampled, ScheduledChunk
from twophase.doors import feature
from twophase.engine.request_state import RequestState
from twophase.engine.runner import Runner
from twophase.engine.sampler import SampleRow, SamplingError, sample
from twophase.scheduling.sequence import Sequence as ScheduledSequence

Results = dict[int, Sampled | Exception]  # by seq_id: a chunk's tokens, or its error


@contextmanager
def plain_context() -> Iterator[None]:
    """PyTorch as in a new thread: no autocast, no inference mode, no default device, no other `TorchFunctionMode`.

    A run's K and V stay in the prefix cache and its weights in the model, so a caller's context must not affect them.
    Process-wide settings, which other threads share, are left alone.
    """
    casting = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    try:
        for kind in casting:
            torch.set_autocast_enabled(kind, False)
        with torch._C.DisableTorchFunction(), torch.inference_mode(False):
            yield
    finally:
        for kind in casting:
            torch.set_autocast_enabled(kind, True)


T = TypeVar("T")
R = TypeVar("R")


def isolate(compute: Callable[[Sequence[T]], Sequence[R]], items: Sequence[T]) -> list[R | Exception]:
    """`compute(items)`, one result per item; an item whose computation raises gets the exception as its result.

    When `compute`, which must be safe to repeat, raises, it is called again on each half. So f faulty items among n
    cost about 2 f log2(n) smaller calls, and items that fail only together (out of memory) succeed apart. An
    UnrecoverableError, of a lost peer for example, would be raised by every call: all items get it at once.
    """
    if not items:
        return []
    try:
        return list(compute(items))
    except UnrecoverableError as error:
        return [error] * len(items)
    except Exception as error:
        if len(items) == 1:
            return [error]
    middle = len(items) // 2
    return isolate(compute, items[:middle]) + isolate(compute, items[middle:])


class BatchEntry(NamedTuple):
    """A chunk of the batch, with its sequence and its request."""

    chunk: ScheduledChunk
    sequence: ScheduledSequence
    state: RequestState


def run_and_sample(runner: Runner, batch: Sequence[BatchEntry]) -> list[Sampled | SamplingError]:
    """One result for each chunk. Log-probabilities of prompt tokens go to their requests. Safe to repeat."""
    chunks, scorer = [each.chunk for each in batch], None
    if any(each.state.prompt_logprobs is not None for each in batch):
        chunks, scorer = feature("logprobs").scored(batch)
    logits = runner.run(chunks, None if scorer is None else scorer.take)
    # After the launch: on a GPU the constraints compute their masks while the model runs.
    rows = [row for each in batch for row in sampling_rows(each)]
    sampled = iter(() if logits is None else sample(logits, rows, getattr(runner, "look_ahead", id)))
    if scorer is not None:
        scorer.note()
    return [_result(each.chunk, sampled) for each in batch]


def sampling_rows(entry: BatchEntry) -> list[SampleRow]:
    """No row for a prefill that goes on; else one after the newest token, and one after each draft."""
    chunk = entry.chunk
    if not chunk.num_samples:
        return []
    drafts = chunk.draft_ids if chunk.num_drafts else ()
    return [row_after(entry, drafts[:i], chunk.num_samples) for i in range(len(drafts) + 1)]


def row_after(entry: BatchEntry, drafts: Sequence[int] = (), num_samples: int = 1) -> SampleRow:
    """The sampling inputs for the token after a sequence's newest token and `drafts`."""
    _, sequence, state = entry
    token_ids, num_prompt_tokens = sequence.token_ids, sequence.num_prompt_tokens
    params, constraint = state.request.sampling_params, state.completions[sequence.index].constraint
    position = len(token_ids) + len(drafts) - num_prompt_tokens
    return SampleRow(
        params,
        state.seed,
        sequence.index,
        position,
        num_samples,
        [*token_ids, *drafts] if drafts else token_ids,
        None if constraint is None else constraint.allowed_after(token_ids, num_prompt_tokens, drafts),
        sequence.stop_token_ids if position < params.min_tokens else (),
        state.bias,
    )


def _result(chunk: ScheduledChunk, sampled: Iterator[Sampled | SamplingError]) -> Sampled | SamplingError:
    """The tokens that a chunk yields, from the tokens of its rows: the next ones of `sampled`."""
    if not chunk.num_drafts:
        return next(sampled) if chunk.num_samples else ()
    drawn = list(islice(sampled, chunk.num_drafts + 1))
    run: Sampled | SamplingError = feature("speculation.rejection").accepted_run(drawn, chunk.draft_ids)
    return run
