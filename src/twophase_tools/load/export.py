"""Records and steps for other programs: flat rows, and one JSON document."""

import json
from collections.abc import Sequence
from typing import Any

from twophase.core.plan import StepTrace
from twophase_tools.load.queue import queue_states
from twophase_tools.load.records import RequestRecord
from twophase_tools.load.report import ServingReport
from twophase_tools.load.steps import end_of, fragmentation, num_blocks, num_tokens

Row = dict[str, str | int | float | None]


def request_rows(records: Sequence[RequestRecord]) -> list[Row]:
    """A flat row per request, ready for `pandas.DataFrame(rows)` or `csv.DictWriter`; None is a missing value."""
    return [
        {
            "request_id": record.request_id,
            "arrival_s": record.arrival_s,
            "first_scheduled_s": record.first_scheduled_s,
            "first_token_s": record.token_times_s[0] if record.token_times_s else None,
            "finished_s": record.finished_s,
            "finish_reason": record.finish_reason,
            "num_prompt_tokens": record.num_prompt_tokens,
            "num_cached_tokens": record.num_cached_tokens,
            "num_output_tokens": record.num_output_tokens,
            "num_preemptions": record.num_preemptions,
            "queue_s": record.queue_s,
            "ttft_s": record.ttft_s,
            "tpot_s": record.tpot_s,
            "itl_max_s": max(record.itls_s, default=None),
            "latency_s": record.latency_s,
        }
        for record in records
    ]


def token_rows(records: Sequence[RequestRecord]) -> list[Row]:
    """A flat row per output token of completion 0; `itl_s` is None for a request's first."""
    return [
        {"request_id": record.request_id, "position": position, "time_s": time_s, "itl_s": itl_s}
        for record in records
        for position, (time_s, itl_s) in enumerate(zip(record.token_times_s, (None, *record.itls_s), strict=False))
    ]


def step_rows(
    steps: Sequence[StepTrace], records: Sequence[RequestRecord] = (), block_size: int | None = None
) -> list[Row]:
    """A flat row per step; `records` tell the queue at its end, `block_size` the fragmentation."""
    queue = queue_states(records, [end_of(step) for step in steps])
    return [
        {
            "step": step.step,
            "start_s": step.start_s,
            "end_s": end_of(step),
            "schedule_s": step.schedule_s,
            "run_s": step.run_s,
            "update_s": step.update_s,
            "num_chunks": len(step.chunks),
            "num_decode_tokens": step.num_decode_tokens,
            "num_prefill_tokens": num_tokens(step) - step.num_decode_tokens,
            "num_preempted": len(step.preempted),
            "num_finished": len(step.finished),
            "num_waiting": step.num_waiting,
            "num_running": step.num_running,
            "queue_depth": state.depth,
            "queue_age_s": state.age_s,
            "num_blocks": num_blocks(step),
            "blocks_in_use": step.blocks_in_use,
            "blocks_cached": step.blocks_cached,
            "blocks_free": step.blocks_free,
            "kv_cache_usage": step.kv_cache_usage,
            "prefix_cache_queries": step.prefix_cache_queries,
            "prefix_cache_hits": step.prefix_cache_hits,
            "blocks_offloaded": step.blocks_offloaded,
            "blocks_loaded": step.blocks_loaded,
            "fragmentation": None if block_size is None else fragmentation(step, block_size),
        }
        for step, state in zip(steps, queue, strict=True)
    ]


def to_json(
    report: ServingReport,
    records: Sequence[RequestRecord],
    steps: Sequence[StepTrace] = (),
    block_size: int | None = None,
    **more: Any,
) -> str:
    """One document: the report, a row per request and a row per step, and what else is given by name.

    Strict JSON (RFC 8259): a missing value is null, and there is no NaN or Infinity.

    Raises:
        ValueError: Something in `more` is not finite.
    """
    document = more | {
        "report": report.to_dict(),
        "requests": request_rows(records),
        "steps": step_rows(steps, records, block_size),
    }
    return json.dumps(document, indent=2, allow_nan=False)
