"""`quantization=...` in the engine: which layers are rounded, by how many processes whatever their number, and how much
memory that takes."""

import pytest
import torch

from tests.model.paged import BLOCK_SIZE, Pages
from tests.model.test_families import LOGITS_TOLERANCE, oracle_logits
from tests.model.tiny import make_folder
from twophase import LLM, SamplingParams
from twophase.core.errors import ConfigError, ModelFolderError
from twophase.model.config import load_config
from twophase.model.weights import load_weights
from twophase_features.parallel.sharding import Shard
from twophase_features.quantization import loader
from twophase_features.quantization.linear import DynamicInt8Linear, Int4Linear
from twophase_features.quantization.rounding import quantize
from twophase_features.quantization.schemes import SCHEMES, head_scheme

PROMPT = [5, 17, 99, 3, 64, 23, 88]
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32}
CPU = torch.device("cpu")
OPENED = {"skip_tokenizer_init": True, "num_kv_blocks": 20, "block_size": BLOCK_SIZE}
WEIGHT_ONLY = [name for name, scheme in SCHEMES.items() if scheme.activations != "int8"]


def round_oracle(model, scheme):
    """transformers' model with the values that the engine multiplies by."""
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" or name.endswith("_proj.weight"):
            wanted = head_scheme(scheme) if name.startswith("lm_head") else scheme
            tensor.copy_(quantize(tensor.clone(), wanted).dequantize())


@pytest.mark.parametrize("name", WEIGHT_ONLY)
def test_logits_are_those_of_the_rounded_weights(name, tmp_path):
    folder, oracle = make_folder("llama-biases", tmp_path, **SIZES)
    round_oracle(oracle, SCHEMES[name])
    llm = LLM(folder, quantization=name, device="cpu", dtype="float32", **OPENED)
    ours, theirs = Pages(llm.model, 1).run([(0, PROMPT)])[0], oracle_logits(oracle, PROMPT)
    assert float((ours - theirs).abs().max()) <= LOGITS_TOLERANCE


def test_tied_embeddings_are_rounded_for_the_head_alone(tmp_path):
    folder, oracle = make_folder("qwen2-tied", tmp_path, **SIZES)
    llm = LLM(folder, quantization="int8", device="cpu", dtype="float32", **OPENED)
    embed = oracle.state_dict()["model.embed_tokens.weight"]
    assert torch.equal(llm.model.weights.embed, embed)
    x = torch.randn(3, SIZES["hidden_size"])
    rounded = quantize(embed, SCHEMES["int8"]).dequantize()
    assert torch.allclose(llm.model.weights.lm_head(x), x @ rounded.T, atol=1e-4)


def test_a_router_is_not_rounded(tmp_path):
    folder, oracle = make_folder("qwen3-moe", tmp_path, **SIZES)
    llm = LLM(folder, quantization="int4", device="cpu", dtype="float32", **OPENED)
    mlp, x = llm.model.weights.layers[0].mlp, torch.randn(3, SIZES["hidden_size"])
    state = oracle.state_dict()
    assert torch.allclose(mlp.router(x), x @ state["model.layers.0.mlp.gate.weight"].T, atol=1e-4)
    down = quantize(state["model.layers.0.mlp.experts.down_proj"][2], SCHEMES["int4"]).dequantize()
    y = torch.randn(3, down.shape[1])
    assert torch.allclose(mlp.down.layers[2](y), y @ down.T, atol=1e-4)


@pytest.mark.parametrize("name", ["int4", "int8", "int8_dynamic"])
def test_a_rank_has_its_part_of_the_same_codes(name, tmp_path):
    """Rounded whole, then cut: the sum over ranks is what one process computes."""
    folder, _ = make_folder("llama", tmp_path, **SIZES)
    config = load_config(folder)
    whole = load_weights(folder, config, torch.float32, CPU, scheme=SCHEMES[name])
    ranks = [Shard(config, rank, 2) for rank in range(2)]
    parts = [load_weights(folder, config, torch.float32, CPU, each.cut, scheme=SCHEMES[name]) for each in ranks]
    x = torch.randn(5, SIZES["hidden_size"])
    for shard, part in zip(ranks, parts, strict=True):
        rows = range(config.num_heads * config.head_dim)[shard.heads.start * 32 : shard.heads.stop * 32]
        queries = part.layers[0].qkv(x)[:, : len(rows)]
        assert torch.allclose(queries, whole.layers[0].qkv(x)[:, rows.start : rows.stop], atol=1e-4)
    y = torch.randn(5, SIZES["intermediate_size"])
    summed = sum(part.layers[0].mlp.down(y[:, shard.mlp]) for shard, part in zip(ranks, parts, strict=True))
    wanted = whole.layers[0].mlp.down(y)
    # A rank rounds its own part of int8_dynamic's activations, with a scale of its own: sums differ a little.
    share = 0.02 if name == "int8_dynamic" else 1e-5
    assert float((summed - wanted).abs().max()) <= share * float(wanted.abs().max())


def test_bad_input_is_refused(tmp_path):
    folder, _ = make_folder("llama", tmp_path)  # 48 inputs
    with pytest.raises(ConfigError, match=r"groups of 32 does not divide a layer of 48 inputs"):
        LLM(folder, quantization="int4", skip_tokenizer_init=True)
    with pytest.raises(ConfigError, match=r"quantization must be one of int8, int8_dynamic, int4, .*got 'int3'"):
        LLM(folder, quantization="int3")
    sick, model = make_folder("llama", tmp_path / "sick", **SIZES)
    model.model.layers[1].mlp.down_proj.weight.data[3, 4] = torch.nan
    model.save_pretrained(sick)
    with pytest.raises(ModelFolderError, match=r"layers\.1\.mlp\.down_proj\.weight: a weight that is not finite"):
        LLM(sick, quantization="int8", skip_tokenizer_init=True)


def test_the_plain_form_is_kept_while_there_is_room(tmp_path, monkeypatch):
    folder, _ = make_folder("llama", tmp_path, **SIZES)
    for free, keeps_plain in ((2**30, True), (1000, False)):
        monkeypatch.setattr(loader, "free_host_memory_bytes", lambda free=free: free)
        loaded = load_weights(folder, load_config(folder), torch.bfloat16, CPU, scheme=SCHEMES["int4"])
        layer = loaded.layers[0].qkv
        if not isinstance(layer, Int4Linear):
            pytest.skip("not run here: torch has no int4 operator for this CPU")
        assert (layer.plain is not None) == keeps_plain


@pytest.mark.full
def test_int4_answers_sensibly(smollm2_folder):
    params = SamplingParams(temperature=0, max_tokens=2)
    for name, layer in (("int4", None), ("int8_dynamic", DynamicInt8Linear)):
        llm = LLM(str(smollm2_folder), quantization=name, device="cpu", num_kv_blocks=20, block_size=BLOCK_SIZE)
        assert layer is None or isinstance(llm.model.weights.layers[0].qkv, layer)
        prompts = ["The capital of France is", "The opposite of hot is", "Two plus two is"]
        texts = [each.outputs[0].text for each in llm.generate(prompts, params, use_tqdm=False)]
        assert texts[0] == " Paris."
        assert "cold" in texts[1]
