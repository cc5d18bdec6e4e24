"""From requests to text, step by step.

Public: `engine` (`Engine.step` is the life of a token), `prompts`, `request_state`, `executor` (where a model's parts
are), `runner`, `packing`, `sampler`, `philox`, `rejection` (of drafts), `prompt_logprobs`, `detokenizer`, `metrics`.
Private: what keeps faults (`_isolation`) and Ctrl-C (`_interrupts`) from doing harm.
"""
