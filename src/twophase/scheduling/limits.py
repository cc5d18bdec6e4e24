"""The scheduler's limits, the validation of requests by them, and the blocks that an admission leaves free."""

from dataclasses import dataclass

from twophase.cache.allocator import KVAllocator, KVTable
from twophase.core.errors import ConfigError, InvalidRequestError, prompt_too_long
from twophase.core.request import Request
from twophase.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits on one step and on one sequence. Raises ConfigError if the token budget is below `max_num_seqs`.

    Attributes:
        max_num_seqs: Sequences that may run at once; each completion of a request with n > 1 is a sequence.
        enable_chunked_prefill: Without it a prompt that does not fit beside the decodes holds up the queue.
        reserve_growth: Whether 'optimistic' and 'estimate' leave a block to each running sequence. Without it a
            sequence may be preempted right after an admission, and a crowded pool thrashes; see lab 4.
        watermark: `admission_watermark`; does not hold while no sequence runs.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    reserve_growth: bool = True
    watermark: int | float = 0.0
    admission: str = "optimistic"

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens must be at least max_num_seqs, so that every running sequence can decode in "
                f"every step, got {self.max_num_batched_tokens} < {self.max_num_seqs}; raise one or lower the other."
            )


def check_request(request: Request, config: SchedulerConfig, cache: KVAllocator) -> None:
    """Raises InvalidRequestError naming the rule, both values and what to change."""
    params, num_prompt_tokens = request.sampling_params, len(request.prompt_token_ids)
    if num_prompt_tokens == 0:
        raise InvalidRequestError("the prompt must have at least one token, got none.")
    if num_prompt_tokens >= config.max_model_len:
        raise prompt_too_long(f"{num_prompt_tokens} tokens", config.max_model_len)
    if params.n > config.max_num_seqs:
        raise InvalidRequestError(
            f"n completions run together, so n must be at most max_num_seqs={config.max_num_seqs}, got n={params.n}; "
            f"lower n, send several requests, or raise max_num_seqs."
        )
    if not config.enable_chunked_prefill and num_prompt_tokens > config.max_num_batched_tokens:
        raise InvalidRequestError(
            f"without chunked prefill a prompt must fit one step, max_num_batched_tokens="
            f"{config.max_num_batched_tokens}, got {num_prompt_tokens} tokens; set enable_chunked_prefill=True, raise "
            f"max_num_batched_tokens or shorten the prompt."
        )
    num_needed = num_blocks_at_most(num_prompt_tokens, params.max_tokens, params.n, config, cache)
    if num_needed > cache.num_blocks:
        raise InvalidRequestError(
            f"the request may need {num_needed} KV blocks of {cache.block_size} tokens (prompt {num_prompt_tokens}, "
            f"max_tokens {params.max_tokens}, max_model_len {config.max_model_len}, n {params.n}{cache.description}), "
            f"and the pool has {cache.num_blocks}; lower max_tokens or n, shorten the prompt, or raise num_kv_blocks."
        )


def num_blocks_at_most(
    num_prompt_tokens: int, max_tokens: int, n: int, config: SchedulerConfig, cache: KVAllocator
) -> int:
    """Blocks that the n completions of a request hold together when each is as long as it may get.

    The last token is sampled but never written, and full prompt blocks are shared. Worked example, block size 4,
    prompt 6, max_tokens 5, n 2: 6 + 5 - 1 = 10 slots are 3 blocks, the first is shared: 1 + 2 * 2 = 5.
    """
    num_slots = min(num_prompt_tokens + max_tokens, config.max_model_len) - 1
    if num_slots == num_prompt_tokens:
        n = 1  # one token each: nothing is written after the fork
    num_blocks = cache.num_blocks_at_most(num_slots, num_prompt_tokens, n)
    if config.enable_chunked_prefill:
        return num_blocks
    num_of_prompt = -(-num_prompt_tokens // cache.block_size) * cache.num_blocks_at_most(1)
    return max(num_blocks, num_of_prompt)  # all of the prompt is written before a window frees a block


class AdmissionRule:
    """How many free blocks an admission leaves to each running sequence. Here `admission='optimistic'`, a block for the
    next token of each; the other rules are in twophase_features.admission."""

    def __init__(self, config: SchedulerConfig, cache: KVAllocator) -> None:
        self.config, self.cache = config, cache

    def headroom(self, sequence: Sequence, table: KVTable) -> int:
        """Free blocks left to a sequence, for all its completions, beyond the blocks that it has or reserves."""
        cache, num_tokens = self.cache, len(sequence.token_ids)
        num_slots = -(-num_tokens // cache.block_size) * cache.block_size
        may_grow = sequence.num_completions > 1 or sequence.max_num_tokens - 1 > num_slots
        if not may_grow and sequence.is_decoding:  # a decode that is not planned yet: into a new block, or a copy
            may_grow = cache.num_blocks_needed(table, num_tokens) > 0
        return sequence.num_completions * cache.num_blocks_at_most(1) if may_grow and self.config.reserve_growth else 0

    def note_end(self, sequence: Sequence) -> None:
        """A sequence has ended by itself, not by an abort or an error."""
        return
