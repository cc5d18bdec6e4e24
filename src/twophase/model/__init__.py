"""The model: its folder, its weights, and its forward pass.

Public: `prepare` (download and convert), `load`, `config`, `weights`, `tokenizer`; `llama`, `experts`, `linear`,
`rope`.
"""
