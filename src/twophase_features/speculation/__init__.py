"""Speculative decoding: tokens are guessed cheaply, and verified together in one step.

Public: `drafters` (lookup in the text), `draft_model`, `speculator` (any drafter made safe, paced and counted), `gate`
(stops drafting where it loses), `opening` (what an engine's options ask for).
"""
