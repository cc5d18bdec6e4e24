"""Speculative decoding: tokens are guessed cheaply, and verified together in one step.

Public: `drafters` (what a drafter is, and lookup in the text), `draft_model`, `speculator` (drafts for a step's
sequences), `gate` (stops drafting where it loses), `opening` (what an engine's options ask for).
"""
