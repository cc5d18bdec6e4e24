"""From requests to text: `engine` (the life of a token), `request_state`, `runner`, `model_run`, `sampler`, `philox`,
`detokenizer`, `metrics`; and the doors `executor` (processes) and `constraint` (allowed tokens)."""
