"""The metrics' names, kinds and meanings, without the library that counts them. Plain data.

Names follow vLLM's, with 'twophase:' for 'vllm:'.
"""

from collections.abc import Callable
from dataclasses import dataclass

from twophase.core.request import FinishReason

# Three buckets per decade, from a millisecond to a quarter of an hour; and powers of two for counts.
SECONDS = tuple(mantissa * 10.0**exponent for exponent in range(-3, 3) for mantissa in (1, 2.5, 5))
TOKENS = tuple(float(2**exponent) for exponent in range(18))


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family without its samples.

    Attributes:
        kind: 'counter', 'gauge' or 'histogram'. A counter's name ends in _total.
        buckets: Upper bounds of a histogram's buckets, rising; +Inf is added.
    """

    name: str
    kind: str
    help: str
    buckets: tuple[float, ...] = ()


def _family(kind: str, ending: str = "", buckets: tuple[float, ...] = ()) -> Callable[[str, str], Metric]:
    return lambda name, text: Metric(f"twophase:{name}{ending}", kind, text, buckets)


_seconds, _tokens = _family("histogram", "_seconds", SECONDS), _family("histogram", buckets=TOKENS)
_counter, _gauge = _family("counter", "_total"), _family("gauge")

TIME_TO_FIRST_TOKEN = _seconds("time_to_first_token", "Time to first token, from arrival.")
INTER_TOKEN_LATENCY = _seconds("inter_token_latency", "Time between two tokens of a request.")
TIME_PER_OUTPUT_TOKEN = _seconds("request_time_per_output_token", "Mean time per output token after a request's first.")
E2E_LATENCY = _seconds("e2e_request_latency", "Time from arrival to the end of a request.")
QUEUE_TIME = _seconds("request_queue_time", "Time from arrival to the first scheduling.")
PROMPT_TOKENS = _tokens("request_prompt_tokens", "Prompt tokens of a request.")
GENERATION_TOKENS = _tokens("request_generation_tokens", "Tokens generated for a request.")
# vLLM calls this histogram iteration_tokens_total, an ending that OpenMetrics keeps for counters.
ITERATION_TOKENS = _tokens("iteration_tokens", "Tokens computed in a step of the engine.")

PROMPT_TOKENS_TOTAL = _counter("prompt_tokens", "Prompt tokens of scheduled requests.")
GENERATION_TOKENS_TOTAL = _counter("generation_tokens", "Tokens generated.")
PREEMPTIONS = _counter("num_preemptions", "Times a sequence lost its blocks.")
PREFIX_CACHE_QUERIES = _counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
PREFIX_CACHE_HITS = _counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
REQUEST_SUCCESS = _counter("request_success", "Requests that ended, by reason.")

WAITING = _gauge("num_requests_waiting", "Sequences waiting for a place or blocks, or for the running step.")
RUNNING = _gauge("num_requests_running", "Sequences that hold blocks.")
KV_CACHE_USAGE = _gauge("kv_cache_usage_perc", "Share of the KV blocks in use, 1 is all.")

# vLLM lacks the following families.
KV_CACHE_USAGE_PEAK = _gauge("kv_cache_usage_perc_peak", "The largest share of the KV blocks after any step.")
QUEUE_AGE = _gauge("queue_age_seconds", "How long the oldest request in the queue has waited.")
FRAGMENTATION = _gauge("kv_cache_fragmentation_perc", "Share of the slots of blocks in use without a token.")
BLOCKS = _gauge("kv_cache_blocks", "KV blocks by state: in_use, cached (evictable) or free.")
EVICTIONS = _counter("kv_cache_evictions", "Cached blocks evicted for another sequence.")
REFUSED = _counter("requests_refused", "Requests that got an error, by HTTP status and error code.")
ENGINE_UP = _gauge("engine_up", "1 while the engine serves, 0 when its thread has died or was closed.")

FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort", "error")

METRICS: tuple[Metric, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
