"""From requests to text, step by step.

Public: `engine` (`Engine.step` is the life of a token), `prompts`, `request_state`, `executor` (where a model's parts
    are), `runner`, `packing`, `model_run`, `sampler`, `philox`, `rejection` (of drafts), `prompt_logprobs`,
    `detokenizer`, `metrics`; and the doors `drafter` (tokens proposed) and `constraint` (tokens allowed). Private:
    isolation of faults (`_isolation`) and of Ctrl-C (`_interrupts`), and a plain PyTorch context (`_context`).
"""
