"""Blocks on disk: found again by another engine of the same model, and by no other."""

import pytest

from tests.engine.engines import prompt_of
from tests.model.tiny import make_folder
from twophase import LLM, SamplingParams
from twophase.core.errors import ConfigError
from twophase.core.plan import BlockKey
from twophase_features.offloading.disk import DiskTier

PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
LONG, OTHERS = prompt_of(1, 41), [prompt_of(seed, 41) for seed in range(2, 6)]
OPTIONS = {"num_kv_blocks": 16, "block_size": 4, "max_num_seqs": 1, "max_model_len": 48}


def serve(folder, disk, prompts, **options):
    """Tokens of each prompt, and how many of the first one's prompt tokens were computed."""
    with LLM(folder, kv_tier=DiskTier(disk), **OPTIONS | options) as llm:
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
        computed = [tokens for step in llm.engine.trace for name, _, start, tokens in step.chunks if name == "0"]
        return [output.outputs[0].token_ids for output in outputs], sum(computed) - PARAMS.max_tokens + 1


def test_another_process_finds_what_this_one_has_computed(tiny_folder, tmp_path):
    (expected, *_), first = serve(tiny_folder, tmp_path, [LONG, *OTHERS])
    (found,), second = serve(tiny_folder, tmp_path, [LONG])
    assert found == expected
    assert (first, second) == (41, 1)
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("options", [{"kv_cache_dtype": "bfloat16"}, {"quantization": "int8"}, {"block_size": 8}])
def test_another_format_finds_nothing(tiny_folder, tmp_path, options):
    serve(tiny_folder, tmp_path, [LONG, *OTHERS])
    _, computed = serve(tiny_folder, tmp_path, [LONG], **options)
    assert computed == 41


def test_layers_of_different_kinds(tmp_path):
    folder = tmp_path / "gemma"
    make_folder("gemma3", folder)
    options = {"num_kv_blocks": 60, "skip_tokenizer_init": True}
    (expected, *_), _ = serve(folder, tmp_path / "disk", [LONG, *OTHERS], **options)
    (found,), computed = serve(folder, tmp_path / "disk", [LONG], **options)
    assert found == expected
    assert computed < 41


def test_a_damaged_file_is_a_miss_and_is_deleted(tiny_folder, tmp_path):
    (expected, *_), _ = serve(tiny_folder, tmp_path, [LONG, *OTHERS])
    files = list(tmp_path.rglob("*.safetensors"))
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    (found,), computed = serve(tiny_folder, tmp_path, [LONG])
    assert (found, computed) == (expected, 41)
    assert sum(file.exists() and file.stat().st_size == 100 for file in files) == len(files) - 1


def test_no_more_files_than_it_may_have(tiny_folder, tmp_path):
    with LLM(tiny_folder, kv_tier=DiskTier(tmp_path, num_blocks=7), **OPTIONS) as llm:
        llm.generate([LONG, *OTHERS], PARAMS, use_tqdm=False)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 7


def test_what_cannot_work_is_refused(tiny_folder, tmp_path):
    with pytest.raises(ConfigError, match="at least 1 block, got num_blocks=0"):
        DiskTier(tmp_path, num_blocks=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"folder .*file.* cannot be used"):
        LLM(tiny_folder, kv_tier=DiskTier(tmp_path / "file"), **OPTIONS)
    tier = DiskTier(tmp_path / "disk")
    with LLM(tiny_folder, kv_tier=tier, **OPTIONS), pytest.raises(ConfigError, match="another engine"):
        LLM(tiny_folder, kv_tier=tier, **OPTIONS)
    assert tier.match([BlockKey(b"unknown", b"")]) == 0
