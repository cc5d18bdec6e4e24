"""From requests to text, step by step.

Public: `engine` (`Engine.step` is the life of a token), `request_state`, `runner`, `model_run`, `sampler`, `philox`,
`detokenizer`, `metrics`; and the doors `executor` (processes), `speculator` (drafts) and `constraint` (allowed tokens).
"""
