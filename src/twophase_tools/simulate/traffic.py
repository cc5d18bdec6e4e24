"""Workloads as requests for a scheduler, made one at a time: a day of them takes no memory."""

from collections.abc import Iterable, Iterator

from twophase.core.request import Request, SamplingParams
from twophase_tools.load.workloads import TimedRequest


def requests_of(workload: Iterable[TimedRequest]) -> Iterator[Request]:
    """What a scheduler is asked. A prompt that is not given is one made-up token, repeated; a shared prefix another:
    prompts share what they should and nothing else, and are made quickly."""
    params: dict[int, SamplingParams] = {}  # checked once for each length
    prefixes: dict[str, int] = {}
    for number, timed in enumerate(workload):
        num_output_tokens = timed.num_output_tokens
        if num_output_tokens not in params:
            params[num_output_tokens] = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)
        prompt = timed.prompt_token_ids
        if prompt is None:
            shared = 2 * prefixes.setdefault(timed.prefix, len(prefixes)) + 1
            num_own = timed.num_prompt_tokens - timed.num_prefix_tokens
            prompt = (shared,) * timed.num_prefix_tokens + (2 * number,) * num_own
        yield Request(timed.request_id, prompt, params[num_output_tokens], arrival_s=timed.arrival_s)
