"""One run of the model: chunks go forward, a token is drawn for each sampling row, and each chunk gets its result.

A chunk yields no token while its prefill goes on, one when it decodes, n when a prompt is done and its n completions
fork, and up to num_drafts + 1 when it verifies drafts.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from twophase.core.plan import SampledToken, ScheduledChunk
from twophase.engine.drafter import DraftRequest
from twophase.engine.prompt_logprobs import note_scores, scored_rows
from twophase.engine.request_state import RequestState
from twophase.engine.runner import Runner
from twophase.engine.sampler import SampleRow, SamplingError, sample
from twophase.scheduling.sequence import Sequence as ScheduledSequence
from twophase_features.logprobs import PromptScorer
from twophase_features.speculation.rejection import accepted_run

Sampled = tuple[SampledToken, ...]
Results = dict[int, Sampled | Exception]  # by seq_id: a chunk's tokens, or its error


class BatchEntry(NamedTuple):
    """A chunk of the batch, with its sequence and its request."""

    chunk: ScheduledChunk
    sequence: ScheduledSequence
    state: RequestState

    def without_drafts(self) -> "BatchEntry":
        return self._replace(chunk=self.chunk.without_drafts())


def run_and_sample(runner: Runner, batch: Sequence[BatchEntry]) -> list[Sampled | SamplingError]:
    """One result for each chunk. Log-probabilities of prompt tokens go to their requests. Safe to repeat."""
    scored = [each for each in batch if each.chunk.num_scored]
    scorer = PromptScorer([scored_rows(each.chunk, each.state) for each in scored])
    logits = runner.run([each.chunk for each in batch], scorer.take)
    # After the launch: on a GPU the constraints compute their masks while the model runs.
    rows = [row for each in batch for row in sampling_rows(each)]
    sampled = iter(() if logits is None else sample(logits, rows))
    for each, logprobs in zip(scored, scorer.results(), strict=True):
        note_scores(each.chunk, each.state, logprobs)
    return [_result(each.chunk, sampled) for each in batch]


def sampling_rows(entry: BatchEntry) -> list[SampleRow]:
    """No row for a prefill that goes on; else one after the newest token, and one after each draft."""
    chunk = entry.chunk
    if not chunk.num_samples:
        return []
    drafts = chunk.draft_ids if chunk.num_drafts else ()
    return [row_after(entry, drafts[:i], chunk.num_samples) for i in range(len(drafts) + 1)]


def row_after(entry: BatchEntry, drafts: Sequence[int] = (), num_samples: int = 1) -> SampleRow:
    """How the token after a sequence's newest one, or after drafts behind that, is drawn."""
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
    return accepted_run(list(islice(sampled, chunk.num_drafts + 1)), chunk.draft_ids)


def draft_request(entry: BatchEntry, vocab_size: int) -> DraftRequest:
    """The request for drafts of a sequence that decodes."""
    chunk, sequence, state = entry
    token_ids, constraint = sequence.token_ids, state.completions[sequence.index].constraint
    num_allowed = len if constraint is None else partial(constraint.num_allowed, token_ids, sequence.num_prompt_tokens)
    return DraftRequest(chunk, token_ids, sequence.stop_token_ids, partial(row_after, entry), num_allowed, vocab_size)
