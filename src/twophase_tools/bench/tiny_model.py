"""A random Llama in a folder, made on the fly: a model for what is about the server, and not about the text."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

END = "<|end|>"
NUM_LAYERS, HIDDEN, MLP, HEADS, KV_HEADS, HEAD_DIM = 2, 32, 64, 4, 2, 8


def write_tiny_model(folder: Path, max_model_len: int = 512, seed: int = 0) -> None:
    """Two layers of 32 numbers, in Hugging Face's files; each byte of a text is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({END: 0} | {byte: i for i, byte in enumerate(alphabet, start=1)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    vocab_size = tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": max_model_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(_weights(vocab_size, seed), str(folder / "model.safetensors"))


def _weights(vocab_size: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (MLP, HIDDEN),
        "mlp.up_proj": (MLP, HIDDEN),
        "mlp.down_proj": (HIDDEN, MLP),
    }
    weights = {
        "model.embed_tokens.weight": torch.randn(vocab_size, HIDDEN, generator=generator),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for layer in range(NUM_LAYERS):
        for name, shape in shapes.items():
            weight = torch.randn(shape, generator=generator) * shape[1] ** -0.5
            weights[f"model.layers.{layer}.{name}.weight"] = weight
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{norm}.weight"] = torch.ones(HIDDEN)
    return weights
