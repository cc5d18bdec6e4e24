"""The model: its folder, its weights, and its forward pass.

Public: `device_and_dtype`, `config`, `weights`, `tokenizer`; `llama`, `linear`, `ops`, `rope`.
"""
