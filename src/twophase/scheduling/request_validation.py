"""Validation: a request that can never be served as asked is refused when it is added, with the numbers."""

import bisect
import math
from numbers import Real
from typing import Any

from twophase.cache.allocator import KVAllocator
from twophase.core.errors import InvalidRequestError, prompt_too_long
from twophase.core.request import Request
from twophase.scheduling.config import SchedulerConfig
from twophase.scheduling.policy import Policy
from twophase.scheduling.sequence import Sequence


def check_request(request: Request, config: SchedulerConfig, cache: KVAllocator) -> None:
    """Raises InvalidRequestError naming the rule, both values and what to change."""
    num_prompt_tokens = len(request.prompt_token_ids)
    params = request.sampling_params
    if not _is_time(request.arrival_s):
        raise InvalidRequestError(
            f"arrival_s must be a finite number, for policies plan by it, got {request.arrival_s!r:.50}; leave it out "
            f"for a request that comes now."
        )
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
    """Blocks that the n completions of a request come to hold together when each is as long as it may get.

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
    return max(num_blocks, num_of_prompt)  # all of the prompt is written before a window gives any back


def max_new_tokens(num_prompt_tokens: int, n: int, config: SchedulerConfig, cache: KVAllocator) -> int:
    """The largest `max_tokens` with which `check_request` finds room for such a request, and at least 1."""

    def does_not_fit(max_tokens: int) -> bool:
        return num_blocks_at_most(num_prompt_tokens, max_tokens, n, config, cache) > cache.num_blocks

    most = max(1, config.max_model_len - num_prompt_tokens)
    return max(1, bisect.bisect_left(range(1, most + 1), True, key=does_not_fit))


def usable_rank(policy: Policy, sequence: Sequence) -> tuple[Any, ...]:
    """The policy's sort key for a sequence. One that does not sort would make every later step fail.

    Raises:
        InvalidRequestError: The policy raises, or its key is no tuple of numbers (and of tuples of them), or has a NaN.
    """
    request_id = sequence.request.request_id
    try:
        rank = policy.rank(sequence)
    except Exception as error:
        raise InvalidRequestError(
            f"{policy} cannot rank request {request_id!r}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(rank, tuple) or not all(map(_sorts, rank)):
        raise InvalidRequestError(
            f"a rank must be a tuple of numbers, none of them NaN, or queues cannot be sorted by it; {policy} ranks "
            f"request {request_id!r} by {rank!r:.200}; look at its priority, arrival_s and ttft_slo_s."
        )
    return rank


def _is_time(value: object) -> bool:
    """A number of seconds that may be added to others."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _sorts(value: object) -> bool:
    return all(map(_sorts, value)) if isinstance(value, tuple) else isinstance(value, Real) and bool(value == value)
