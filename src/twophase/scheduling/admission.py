"""The door: a request that can never be served as asked is refused when it is added, with the numbers."""

from twophase.core.errors import InvalidRequestError
from twophase.core.request import Request
from twophase.scheduling.config import SchedulerConfig


def check_request(request: Request, config: SchedulerConfig, num_blocks: int, block_size: int) -> None:
    """Raises InvalidRequestError naming the rule, both values and what to change."""
    num_prompt_tokens = len(request.prompt_token_ids)
    params = request.sampling_params
    if num_prompt_tokens == 0:
        raise InvalidRequestError("the prompt must have at least one token, got none.")
    if num_prompt_tokens >= config.max_model_len:
        raise InvalidRequestError(
            f"prompt and output together must fit max_model_len={config.max_model_len}, and the prompt alone has "
            f"{num_prompt_tokens} tokens; shorten it to at most {config.max_model_len - 1} or raise max_model_len."
        )
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
    num_needed = num_blocks_at_most(num_prompt_tokens, params.max_tokens, params.n, config.max_model_len, block_size)
    if num_needed > num_blocks:
        raise InvalidRequestError(
            f"the request may need {num_needed} KV blocks of {block_size} tokens (prompt {num_prompt_tokens}, "
            f"max_tokens {params.max_tokens}, max_model_len {config.max_model_len}, n {params.n}), and the pool has "
            f"{num_blocks}; lower max_tokens or n, shorten the prompt, or raise num_kv_blocks."
        )


def num_blocks_at_most(num_prompt_tokens: int, max_tokens: int, n: int, max_model_len: int, block_size: int) -> int:
    """Blocks that n completions hold together when each is as long as it may get.

    The last token is sampled but never written, and full prompt blocks are shared. Worked example, block size 4,
    prompt 6, max_tokens 5, n 2: 6 + 5 - 1 = 10 slots are 3 blocks, the first is shared: 1 + 2 * 2 = 5.
    """
    num_slots = min(num_prompt_tokens + max_tokens, max_model_len) - 1
    num_blocks = -(-num_slots // block_size)
    if num_slots == num_prompt_tokens:
        return num_blocks  # one token each: nothing is written after the fork
    num_shared = num_prompt_tokens // block_size
    return num_shared + n * (num_blocks - num_shared)
