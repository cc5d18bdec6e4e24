"""From requests to text, step by step.

Public: `engine` (`Engine.step` is the life of a token), `request_state`, `executor` (where a model's parts
    are), `runner`, `model_run`, `sampler`, `philox`, `detokenizer`, `metrics`; and the doors `drafter` (tokens
    proposed) and `constraint` (tokens allowed).
"""
