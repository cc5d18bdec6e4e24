"""Scheduling policies beside the engine's default one. An engine takes them by `LLM(policy=...)`.

Public: `request_level` (static and dynamic batches), `whole_prompts` (continuous, prefill first), `chunked_prefill`,
    `deadlines`, `ageing` (of priorities), `round_robin` (over prompts), `fair_shares` (of tenants).
"""
