"""Speculative decoding: tokens are drafted cheaply, and verified together in one step.

Public: `config` (the options), `drafter` (the door), `room` (for drafts in a step), `drafters` (n-gram lookup),
    `draft_model`, `speculator` (isolates, paces and counts a drafter), `gate` (stops drafting where it does not pay),
    `rejection` (which drafts are accepted), `opening` (from an engine's options).
"""
