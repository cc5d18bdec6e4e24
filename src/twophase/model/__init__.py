"""A model: its folder on disk, its weights and its forward pass.

Public: `config`, `json_file` and `rope_config` (what config.json says), `tokenizer`, `tensor_files` and `weights`,
`linear`, `ops`, `rope` and `llama` (what runs), `device_and_dtype` (where and in what it does).
"""
