"""From requests to text: `LLM`, `Engine.step`, the runner, sampling, detokenising, and what happens on faults."""
