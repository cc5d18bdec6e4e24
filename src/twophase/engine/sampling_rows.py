"""What a step draws: a sampling row for each token that a chunk yields, and the chunk's result."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from twophase.core.plan import SampledToken, ScheduledChunk
from twophase.engine.drafter import DraftRequest
from twophase.engine.rejection import accepted_run
from twophase.engine.request_state import RequestState
from twophase.engine.sampler import SampleRow, SamplingError
from twophase.scheduling.sequence import Sequence as ScheduledSequence

Sampled = tuple[SampledToken, ...]


def sampling_rows(chunk: ScheduledChunk, sequence: ScheduledSequence, state: RequestState) -> list[SampleRow]:
    """No row for a prefill that goes on; else one after the newest token, and one after each draft."""
    if not chunk.num_samples:
        return []
    drafts = chunk.draft_ids if chunk.num_drafts else ()
    return [row_after(sequence, state, drafts[:i], chunk.num_samples) for i in range(len(drafts) + 1)]


def row_after(
    sequence: ScheduledSequence, state: RequestState, drafts: Sequence[int] = (), num_samples: int = 1
) -> SampleRow:
    """How the token after a sequence's newest one, or after drafts behind that, is drawn."""
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


def result_of(chunk: ScheduledChunk, sampled: Iterator[Sampled | SamplingError]) -> Sampled | SamplingError:
    """The tokens that a chunk yields, from what was drawn of its rows: the next ones of `sampled`."""
    if not chunk.num_drafts:
        return next(sampled) if chunk.num_samples else ()
    return accepted_run(list(islice(sampled, chunk.num_drafts + 1)), chunk.draft_ids)


def draft_request(
    chunk: ScheduledChunk, sequence: ScheduledSequence, state: RequestState, vocab_size: int
) -> DraftRequest:
    token_ids, constraint = sequence.token_ids, state.completions[sequence.index].constraint
    num_allowed = len if constraint is None else partial(constraint.num_allowed, token_ids, sequence.num_prompt_tokens)
    row_of = partial(row_after, sequence, state)
    return DraftRequest(chunk, token_ids, sequence.stop_token_ids, row_of, num_allowed, vocab_size)
