"""From requests to text, step by step.

Public: `engine` (`Engine.step` is the life of a token), `thread` (runs its steps for others), `openmp` (has other
threads leave it the cores), `prompts`, `request_state`, `runner`, `packing`, `cuda_graphs`, `sampler`, `philox`,
`guidance`, `schema_rules`, `prompt_logprobs`, `detokenizer`, `metrics`, `window`; and for speculative
decoding `speculation`, `drafters`, `draft_model`, `rejection`, `speculation_gate`. Private: what keeps faults
(`_isolation`) and Ctrl-C (`_interrupts`) from doing harm.
"""
