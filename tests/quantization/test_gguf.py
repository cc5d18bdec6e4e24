"""GGUF files: every type of block equals the gguf package's dequantisation, bit for bit; folders give their logits."""

import gguf
import numpy as np
import pytest
import torch

from tests.model.paged import Pages
from tests.model.test_families import oracle_logits
from tests.model.tiny import load_model, make_folder
from tests.mutation import KillTable, Mutant
from twophase import LLM, SamplingParams
from twophase.core.errors import ModelFolderError
from twophase.model.config import load_config
from twophase_features.model_store.prepare import prepare_default_model
from twophase_features.quantization import gguf_blocks
from twophase_features.quantization.loader import open_tensors

TYPES = {name: gguf.GGMLQuantizationType[name] for name in gguf_blocks.BLOCK_TYPES}
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64}
PROMPT = [5, 17, 99, 3, 64, 23, 88]
NAMES = {  # Hugging Face's, in a layer -> GGUF's; written down here once more, because a wrong table is a wrong model
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def random_rows(name, num_rows=5, num_blocks=3, seed=0):
    """Blocks of random bits, but for their float16 numbers, which are finite."""
    block = gguf_blocks.BLOCK_TYPES[name]
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (num_rows * num_blocks, block.num_bytes), dtype=np.uint8)
    halves = {"Q4_0": [0], "Q8_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [208]}[name]
    for place in halves:
        numbers = rng.normal(size=len(rows)).astype(np.float16)
        rows[:, place : place + 2] = numbers[:, None].view(np.uint8)
    return rows.reshape(num_rows, -1)


def check_type(name):
    rows = random_rows(name)
    expected = torch.from_numpy(gguf.dequantize(rows, TYPES[name]))

    def check(module):
        weight = module.read_blocks(torch.from_numpy(rows), name)
        assert torch.equal(weight.dequantize(), expected)

    return check


@pytest.mark.parametrize("name", TYPES)
def test_a_type_of_block_equals_the_gguf_package(name):
    check_type(name)(gguf_blocks)


BLOCKS = "twophase_features.quantization.gguf_blocks"
MUTANTS = {
    "Q4_0": Mutant("zero is in the wrong place", BLOCKS, "16).to(torch.int8) - 8", "16).to(torch.int8) - 7"),
    "Q4_1": Mutant("minima are scales", BLOCKS, "scales_and_minima[:, 1:]", "scales_and_minima[:, :1]"),
    "Q8_0": Mutant(
        "codes have no sign", BLOCKS, "blocks[:, 2:].contiguous().view(torch.int8)", "blocks[:, 2:].short()"
    ),
    "Q4_K": Mutant("late scales lose bits", BLOCKS, "rest & 15 | low >> 6 << 4", "rest & 15 | high >> 6 << 4"),
    "Q6_K": Mutant("upper bits in another order", BLOCKS, "(0, 2, 4, 6)", "(6, 4, 2, 0)"),
}


@pytest.mark.mutants
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant(name):
    KillTable.record(MUTANTS[name], check_type(name))


def write_gguf(folder, kinds, family="llama", architecture="llama", **sizes):
    """A random model as a GGUF file beside its config.json, made as llama.cpp's converter makes it.

    `kinds` gives the type of a tensor by its Hugging Face name; None is float32. Returns transformers' model with the
    values that the file holds.
    """
    _, oracle = make_folder(family, folder, **(SIZES | sizes))
    (folder / "model.safetensors").unlink()
    config = oracle.config
    writer = gguf.GGUFWriter(folder / "model.gguf", architecture)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    state = oracle.state_dict()
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        kind = kinds(name)
        values = tensor.numpy().copy()
        if kind is not None:
            values = gguf.dequantize(_quantised(values, kind), TYPES[kind])
            tensor.copy_(torch.from_numpy(values))
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        order = np.arange(len(values))
        if heads is not None and architecture == "llama":
            order = order.reshape(heads, 2, -1).transpose(0, 2, 1).ravel()  # pairs side by side
        if kind is None:
            writer.add_tensor(_gguf_name(name), np.ascontiguousarray(tensor.numpy()[order]))
        else:
            rows = np.ascontiguousarray(_quantised(tensor.numpy(), kind)[order])
            writer.add_tensor(_gguf_name(name), rows, raw_dtype=TYPES[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return oracle


def _quantised(values, kind):
    """By the gguf package; of the K types, which it only reads, random blocks, whatever the values are."""
    if kind in ("Q4_K", "Q6_K"):
        rows = random_rows(kind, len(values), values.shape[1] // 256, seed=values.size)
        small = {"Q4_K": [0, 2], "Q6_K": [208]}[kind]  # scales of weights of size 1 / 16
        blocks = rows.reshape(-1, gguf_blocks.BLOCK_TYPES[kind].num_bytes)
        for place in small:
            numbers = blocks[:, place : place + 2].copy().view(np.float16) * np.float16(1e-3)
            blocks[:, place : place + 2] = numbers.astype(np.float16).view(np.uint8)
        return rows
    return gguf.quantize(values, TYPES[kind])


def _gguf_name(name):
    stem, _, kind = name.rpartition(".")
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in top:
        return f"{top[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.{kind}"


def mixed_kinds(name):
    """As in a file of the kind Q4_K_M: of q, k and v one has more bits, and the embedding too."""
    if "norm" in name or "bias" in name:
        return None
    return "Q6_K" if any(part in name for part in ("v_proj", "down_proj", "embed")) else "Q4_K"


def assert_close(ours, theirs, what):
    """float32 against float32; sums over 512 in another order, of logits of size 30."""
    assert float((ours - theirs).abs().max()) <= 1e-5 * float(theirs.abs().max()), what


def logits_of(folder):
    return Pages(load_model(folder), 1).run([(0, PROMPT)])[0]


@pytest.mark.parametrize(
    ("family", "architecture"),
    [("llama", "llama"), ("smollm2", "llama"), ("llama-biases", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")],
)
def test_families(family, architecture, tmp_path):
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2}
    oracle = write_gguf(tmp_path, mixed_kinds, family, architecture, **sizes)
    assert_close(logits_of(tmp_path), oracle_logits(oracle, PROMPT), family)


def test_what_cannot_be_read_is_refused_by_name(tmp_path):
    write_gguf(tmp_path / "mamba", lambda name: None, architecture="mamba")
    with pytest.raises(ModelFolderError, match="architecture 'mamba' are not loaded, only of llama"):
        logits_of(tmp_path / "mamba")
    (tmp_path / "mamba" / "another.gguf").write_bytes(b"")
    with pytest.raises(ModelFolderError, match="holds 2 GGUF files"):
        logits_of(tmp_path / "mamba")
    write_gguf(tmp_path / "broken", lambda name: None)
    path = tmp_path / "broken" / "model.gguf"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelFolderError, match=r"model\.gguf cannot be read as a GGUF file.*Download it again"):
        logits_of(tmp_path / "broken")
    make_folder("gemma3", tmp_path / "gemma")
    (tmp_path / "gemma" / "model.safetensors").rename(tmp_path / "gemma" / "model.gguf")
    with pytest.raises(ModelFolderError, match="Gemma3ForCausalLM is not loaded from GGUF"):
        logits_of(tmp_path / "gemma")


def test_a_type_that_is_not_read_and_a_wrong_shape(tmp_path):
    write_gguf(tmp_path, lambda name: None)
    TYPES["Q5_0"] = gguf.GGMLQuantizationType.Q5_0
    try:
        write_gguf(tmp_path, lambda name: "Q5_0" if "up_proj" in name else None)
    finally:
        del TYPES["Q5_0"]
    with pytest.raises(ModelFolderError, match=r"up_proj\.weight is stored as Q5_0; supported: F32, F16, BF16, Q4_0"):
        logits_of(tmp_path)
    write_gguf(tmp_path, lambda name: None)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"intermediate_size": 512', '"intermediate_size": 510'))
    with pytest.raises(ModelFolderError, match=r"has shape \[512, 256\], but config.json calls for \[510, 256\]"):
        logits_of(tmp_path)


def test_the_default_model_as_it_is_shipped(smollm2_folder):
    """The folder in bf16 was made of the file in 4 bits; the file, opened as it is, holds the same values."""
    config = load_config(smollm2_folder)
    stored, plain = (
        open_tensors(folder, config)
        for folder in (prepare_default_model(as_stored=True, progress=False), smollm2_folder)
    )
    assert not stored.is_plain("model.layers.0.mlp.up_proj.weight")
    for name in stored.shapes:
        tensor = stored.read(name)
        values = tensor if stored.is_plain(name) else tensor.dequantize()
        assert torch.equal(values.bfloat16(), plain.read(name)), name
    llm = LLM("smollm2-135m-instruct-q4_1", num_kv_blocks=8)
    (output,) = llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    assert output.outputs[0].text == " Paris"
