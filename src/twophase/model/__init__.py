"""The model: its folder, its weights, and its forward pass.

Public: `prepare` (download and convert), `device_and_dtype`, `config`, `weights`, `tokenizer`; `llama`, `experts`,
`linear`, `rope`.
"""
