"""config.json, old and new forms, and every refusal: the file, what was found, what is supported."""

import json
import sys
from dataclasses import fields
from unittest.mock import patch

import pytest

from tests.model.tiny import FAMILIES, config_readers
from tests.mutation import KillTable, Mutant
from twophase.core.errors import ModelFolderError
from twophase.model import config as config_module
from twophase.model.config import ARCHITECTURES, RopeConfig, family_of, load_config
from twophase_features import gemma3
from twophase_features.rope_scaling import LinearScaling, Llama3Scaling
from twophase_features.windows import layer_types

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
ABSENT = object()
MODEL_TYPES = {name: family_of(name).model_type for name in ARCHITECTURES}


def write(folder, **changes):
    values = {key: value for key, value in (LLAMA | changes).items() if value is not ABSENT}
    if isinstance(name := (values.get("architectures") or [0])[0], str) and "model_type" not in changes:
        values["model_type"] = MODEL_TYPES.get(name, "other")
    (folder / "config.json").write_text(json.dumps(values))
    return folder


# Without these a folder is refused, though transformers has defaults.
SIZES = {
    "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "num_experts", "num_local_experts", "num_experts_per_tok",
    "max_position_embeddings",
}  # fmt: skip
NOT_READ = {"bos_token_id", "eos_token_id"}  # transformers' generate takes them from the file alone


@pytest.mark.parametrize(("config_class", "family"), {row[0]: name for name, row in FAMILIES.items()}.items())
def test_the_defaults_are_those_of_transformers(config_class, family):
    """Every field of transformers' class that this package reads, so that neither can change alone."""
    source = config_readers()
    (architecture,) = (name for name, kind in MODEL_TYPES.items() if kind == config_class.model_type)
    ours = config_module.DEFAULTS | dict(family_of(architecture).defaults)
    theirs = {each.name: each.default for each in fields(config_class) if f'"{each.name}"' in source}
    assert len(theirs) > 15, family
    base = config_class.default_theta
    theirs["rope_theta"] = base["global"] if isinstance(base, dict) else base
    theirs |= {"rope_local_base_freq": base["local"]} if isinstance(base, dict) else {}
    assert not any(theirs.get(name) for name in config_module.UNSUPPORTED)
    for name in theirs.keys() - SIZES - NOT_READ - set(config_module.UNSUPPORTED):
        assert ours.get(name) == theirs[name], name
    assert ours.keys().isdisjoint(SIZES - {"num_key_value_heads"})
    assert ours.get("num_key_value_heads") is None


@pytest.mark.parametrize("type_key", ["rope_type", "type"])
def test_older_and_newer_rope_forms_agree(type_key, tmp_path):
    scaling = {type_key if key == "rope_type" else key: value for key, value in LLAMA3.items()}
    older = load_config(write(tmp_path, rope_theta=5e5, rope_scaling=scaling)).rope
    newer = load_config(write(tmp_path, rope_parameters=LLAMA3 | {"rope_theta": 5e5})).rope
    assert older == newer == RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192))


GEMMA = {
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 7,
    "head_dim": 8,
    "sliding_window": 8,
    "hidden_activation": "gelu_pytorch_tanh",
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window_pattern": 3,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "query_pre_attn_scalar": 16,
}
FULL, SLIDING = "full_attention", "sliding_attention"


def check_gemma(tmp_path):
    """The form of the hub's older files, and what transformers takes where a file does not say."""

    def check(load_config=load_config) -> None:
        config = load_config(write(tmp_path, **GEMMA))
        assert config.layer_types == (SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL, SLIDING)
        assert config.sees_all == (False, False, True, False, False, True, False)
        assert config.rope == RopeConfig(1e6, LinearScaling(8.0))
        assert config.local_rope == RopeConfig(1e4)
        assert (config.attention_scale, config.embed_scale, config.norm_offset) == (0.25, 48**0.5, 1)
        assert (config.tie_word_embeddings, config.sliding_window, config.has_output_norms) == (True, 8, True)
        silent = ("head_dim", "sliding_window", "rope_theta", "rope_local_base_freq", "rope_scaling")
        silent += ("sliding_window_pattern", "query_pre_attn_scalar", "hidden_activation")
        default = load_config(write(tmp_path, **(GEMMA | dict.fromkeys(silent, ABSENT))))
        assert default.layer_types == (*[SLIDING] * 5, FULL, SLIDING)
        assert (default.rope, default.local_rope) == (RopeConfig(1e6), RopeConfig(1e4))
        assert (default.head_dim, default.attention_scale, default.sliding_window) == (256, 1 / 16, 4096)
        one_kind = load_config(write(tmp_path, **(GEMMA | {"num_hidden_layers": 2})))
        assert (one_kind.layer_types, one_kind.sliding_window) == ((), 8)
        assert (one_kind.rope, one_kind.local_rope) == (RopeConfig(1e4), None), "all layers are sliding"

    return check


def test_older_gemma_files(tmp_path):
    check_gemma(tmp_path)()


def test_generation_config_decides_what_ends_a_text(tmp_path):
    write(tmp_path, eos_token_id=2)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    assert load_config(tmp_path).eos_token_ids == {5, 7}
    (tmp_path / "generation_config.json").write_text("{}")
    assert load_config(tmp_path).eos_token_ids == set(), "as in transformers: a file that says nothing is obeyed"
    (tmp_path / "generation_config.json").unlink()
    assert load_config(tmp_path).eos_token_ids == {2}


QWEN = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 8}


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"architectures": ["LlamaForCausalLM"], "sliding_window": None}, None),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 8}, 8),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, None),
        ({"architectures": ["MistralForCausalLM"]}, 4096),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 8}, None),
        (QWEN, None),  # 28 > 2 layers
        (QWEN | {"max_window_layers": 0}, 8),
    ],
)
def test_where_each_family_keeps_its_window(changes, window, tmp_path):
    assert load_config(write(tmp_path, **changes)).sliding_window == window


MIXTRAL = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_hidden_layers": 6,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
SWITCHED = {"use_sliding_window": True, "sliding_window": 8}


@pytest.mark.parametrize(
    ("changes", "sparse_layers", "window"),
    [
        (MIXTRAL, (0, 1), None),
        (MIXTRAL | {"sliding_window": None}, (0, 1), None),
        (MIXTRAL | {"sliding_window": 8}, (0, 1), 8),
        (QWEN3_MOE, (0, 1, 2, 3, 4, 5), None),
        (QWEN3_MOE | {"decoder_sparse_step": 2}, (1, 3, 5), None),
        (QWEN3_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [0, 3]}, (1, 5), None),
        (QWEN3_MOE | {"num_local_experts": 4, "scoring_func": "softmax", "n_shared_experts": 0}, (0, 1, 2, 3, 4, 5), None),
        (QWEN3_MOE | {"sliding_window": 8, "max_window_layers": 6}, (0, 1, 2, 3, 4, 5), None),
        (QWEN3_MOE | SWITCHED, (0, 1, 2, 3, 4, 5), 8),
    ],
)  # fmt: skip
def test_which_layers_have_experts(changes, sparse_layers, window, tmp_path):
    config = load_config(write(tmp_path, **changes))
    assert config.experts.sparse_layers == sparse_layers
    assert config.sliding_window == window
    assert config.experts.intermediate_size == changes.get("moe_intermediate_size", 80)


REFUSED = {
    "more experts per token than experts": (MIXTRAL | {"num_experts_per_tok": 5}, r"num_experts_per_tok 5 is more than the 4"),
    "two numbers of experts": (QWEN3_MOE | {"num_local_experts": 5}, r"must agree; found two numbers"),
    "sigmoid router": (MIXTRAL | {"scoring_func": "sigmoid"}, r"scoring_func 'sigmoid' is not supported"),
    "window of some sparse layers": (QWEN3_MOE | SWITCHED | {"max_window_layers": 3}, r"max_window_layers must be 0"),
    "kinds of sparse layers": (QWEN3_MOE | SWITCHED | {"layer_types": ["full_attention"] * 6}, r"layer_types absent"),
    "unknown architecture": ({"architectures": ["GPT2LMHeadModel"]}, r"GPT2LMHeadModel.*Supported: LlamaForCausalLM"),
    "no architecture": ({"architectures": ABSENT}, r"architectures None.*Supported"),
    "a billion layers": ({"num_hidden_layers": 10**9}, r"'num_hidden_layers' must be a whole number >= 1 and <= 10000, got 1000000000"),
    "a billion experts in all": (QWEN3_MOE | {"num_hidden_layers": 10_000, "num_experts": 100_000}, r"number of experts must be at most 65,536 in all layers together, found 100,000 in each of 10,000"),
    "heads do not divide": ({"num_key_value_heads": 4}, r"num_attention_heads 6 is not a multiple.*4"),
    "odd head": ({"head_dim": 7}, r"head_dim must be even.*7"),
    "chunked attention": (QWEN | {"layer_types": ["chunked_attention"] * 2}, r"2 times one of full_attention, sliding_attention; found 2 of 'chunked_attention'"),
    "quantised": ({"quantization_config": {"quant_method": "hqq"}}, r"'hqq' of weights is not supported.*unquantised"),
    "activation": ({"hidden_act": "gelu"}, r"'gelu' is not supported; supported: 'silu'"),
    "dtype": ({"dtype": "float8_e4m3fn"}, r"float8_e4m3fn.*only float32"),
    "yarn": ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, r"'yarn' is not supported; supported: 'default'"),
    "frequencies": ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, r"low_freq_factor 4.0 must be below"),
    "partial": ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor"),
    "per layer": ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, r"one set of RoPE parameters"),
    "bad eos": ({"eos_token_id": "</s>"}, r"'eos_token_id' must be a token id"),
    "mixed layers without a window": (QWEN | {"max_window_layers": 1, "sliding_window": None}, r"'sliding_window' is null"),
    "sliding layers without a switch": ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["sliding_attention"] * 2}, r"layer_types has sliding_attention, but the model has no sliding window"),
    "a window that Llama has not": ({"sliding_window": 8}, r"sliding_window 8 is not supported"),
    "another family's type": ({"model_type": "qwen3"}, r"model_type 'qwen3' contradicts .*'llama'"),
    "layers that differ": ({"per_layer_config": {"0": {"head_dim": 4}}}, r"per_layer_config .* is not supported"),
    "null for a number": ({"rms_norm_eps": None}, r"'rms_norm_eps' is null"),
    "two forms of RoPE": (GEMMA | {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, r"rope_scaling beside rope_parameters"),
    "soft-capped scores": (GEMMA | {"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping 50.0 is not supported"),
    "a window of 0 that no layer sees": (GEMMA | {"layer_types": [FULL] * 7, "sliding_window": 0}, r"'sliding_window' must be a whole number >= 1 and <= .*, got 0"),
    "attention both ways": (GEMMA | {"use_bidirectional_attention": True}, r"use_bidirectional_attention True is not"),
    "RoPE for all alike": (GEMMA | {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, r"rope_parameters must .*full_attention.*sliding_attention.*found \{'rope_theta'"),
}  # fmt: skip


def test_a_mixture_whose_layers_are_all_dense_is_none(tmp_path):
    assert load_config(write(tmp_path, **QWEN3_MOE, decoder_sparse_step=7)).experts is None


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_file_and_what_was_found(case, tmp_path):
    changes, said = REFUSED[case]
    with pytest.raises(ModelFolderError, match=rf"(?s)config\.json: .*{said}"):
        load_config(write(tmp_path, **changes))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"vocab_size": 1,\n oops}', "is not valid JSON.*line 2"),
        ("[]", "must hold a JSON object, found list"),
        ('{"a":' * 100_000, "is not valid JSON"),
    ],
    ids=["broken", "no object", "nested beyond reason"],
)
def test_a_file_that_is_no_json_object(text, said, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFolderError, match=rf"config\.json {said}"):
        load_config(tmp_path)


def test_no_folder_no_config_and_gguf(tmp_path):
    with pytest.raises(ModelFolderError, match="is not a folder"):
        load_config(tmp_path / "absent")
    with pytest.raises(ModelFolderError, match=r"config\.json is missing"):
        load_config(tmp_path)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelFolderError, match="GGUF"):
        load_config(tmp_path)


def check_layer_types(tmp_path):
    def check(load_config=load_config) -> None:
        for kind, window in (("full_attention", None), ("sliding_attention", 8)):
            config = load_config(write(tmp_path, **QWEN, layer_types=[kind] * 2))
            assert (config.sliding_window, config.is_mixed) == (window, False)
        mixed = load_config(write(tmp_path, **QWEN, max_window_layers=1))
        assert (mixed.sliding_window, mixed.layer_types) == (8, (FULL, SLIDING))
        assert load_config(write(tmp_path, **QWEN, layer_types=[SLIDING, FULL])).sees_all == (False, True)
        for wrong in (["chunked_attention"] * 2, ["sliding_attention"], "sliding_attention", 5):
            with pytest.raises(ModelFolderError, match="layer_types must be 2 times one of"):
                load_config(write(tmp_path, **QWEN, layer_types=wrong))

    return check


def check_door(tmp_path):
    """What a file without a window says of its layers is read, too."""

    def check(load_config=load_config) -> None:
        given = [SLIDING, FULL]
        qwen, mistral = {"architectures": ["Qwen2ForCausalLM"]}, {"architectures": ["MistralForCausalLM"]}
        for family, also in (({}, [given]), (qwen, [given]), (mistral, [])):
            for wrong in ([FULL], FULL, *also):
                with pytest.raises(ModelFolderError, match="layer_types"):
                    load_config(write(tmp_path, **family, layer_types=wrong))
            assert not load_config(write(tmp_path, **family, layer_types=[FULL] * 2)).is_mixed

    return check


def test_layer_types(tmp_path):
    check_door(tmp_path)()
    check_layer_types(tmp_path)()


KINDS, GEMMA3 = layer_types.__name__, gemma3.__name__
MUTANTS = [
    ("unknown attention loads as sliding", KINDS, " and all(kind in LAYER_TYPES for kind in given)", ""),
    ("too few layer types", KINDS, " and len(given) == num_layers", ""),
    ("layer types as text are read", KINDS, "isinstance(given, list) and ", ""),
    ("one full layer too many", KINDS, "if layer < num_full else", "if layer <= num_full else"),
    ("the file's layer types are ignored", KINDS, "default if given is None else given", "default"),
    ("the first of a pattern is full", GEMMA3, "if (layer + 1) % pattern else FULL", "if layer % pattern else FULL"),
    ("bases the wrong way round", GEMMA3, '("rope_theta", "rope_local_base_freq")', '("rope_local_base_freq", "rope_theta")'),
    ("sliding layers are scaled too", GEMMA3, '"sliding_attention": {}}', '"sliding_attention": scaling or {}}'),
    ("sliding layers alone turn as full ones", GEMMA3, "full if types[0] == FULL else local", "full"),
    ("scores by the width of a head", GEMMA3, '"query_pre_attn_scalar") ** -0.5', '"head_dim") ** -0.5'),
    ("embeddings as they are", GEMMA3, 'file.positive_int("hidden_size") ** 0.5', "1.0"),
    ("weights of its own", GEMMA3, '            "tie_word_embeddings": True,\n', ""),
    ("Qwen's layer types pass unread", KINDS, "SLIDING in (given or ())", "False"),
    ("Mistral's layer types pass unread", KINDS, "    given_types(file)  # which", "    # which"),
    ("Llama's layer types pass unread", config_module.__name__, 'file.values.get("layer_types") not in', "None not in"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=[name for name, *_ in MUTANTS])
def test_mutants(mutant, tmp_path):
    name, module_name, *change = mutant

    def check(module) -> None:
        readers = {"twophase_features.families", "twophase_features.gemma3", "twophase_features.experts.config"}
        with patch.dict(sys.modules, {module_name: module}):  # where the door finds it
            for reader in readers - {module_name}:  # which import it
                sys.modules.pop(reader, None)
            for each in (check_layer_types, check_gemma, check_door):
                each(tmp_path)(getattr(module, "load_config", load_config))

    KillTable.record(Mutant(name, module_name, *change), check)
