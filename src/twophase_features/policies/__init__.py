"""Scheduling policies beside the engine's default one. An engine takes them by `LLM(policy=...)`."""
