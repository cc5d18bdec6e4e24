"""A model: `config` and `json_file` (config.json), `tokenizer` and `added_tokens`, `tensor_files` and `weights`,
`linear` and `llama` (the forward pass), `machine` (device, dtype and attention backend)."""
