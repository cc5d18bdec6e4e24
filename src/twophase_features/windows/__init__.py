"""Sliding windows with attention sinks, and models whose layers see different keys.

Public: `sliding_window`, `windowed_cache` (the allocator), `windowed_prefixes` (its prefix cache), `layer_groups`,
`mixed_backend` (attention for layers of different kinds), `resolve` (the window of a model), `layer_types` (what
config.json says of them).
"""
