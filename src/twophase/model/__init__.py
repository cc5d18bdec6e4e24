"""A model: its folder on disk, its weights and its forward pass.

Public: `config`, `json_file` and `rope_config` (config.json), `tokenizer`, `tensor_files` and `weights`, `linear`,
    `ops`, `rope` and `llama` (the forward pass), `device_and_dtype`.
"""
