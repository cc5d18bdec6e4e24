"""Every family equals transformers on the same random folder: logits, and greedy tokens one by one."""

import pytest
import torch

from tests.model.paged import Pages
from tests.model.tiny import FAMILIES, SIZES, make_folder
from twophase.model.load import load_model

# fp32 against fp32, another order of summation: logits are of size 10, so 1e-4 is 1e-5 of them.
LOGITS_TOLERANCE = 1e-4
PROMPT_LENGTHS = (1, 4, 17, 30)  # one token; one block; over a block's and the window's edge


def open_folder(folder):
    return load_model(folder, dtype=torch.float32, device=torch.device("cpu"), attention_backend="torch", block_size=4)


def random_prompts(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(SIZES["vocab_size"], (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]


@torch.inference_mode()
def oracle_logits(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def assert_logits_equal(ours, theirs, what):
    error = (ours - theirs).abs().amax(dim=-1)
    assert error.max() <= LOGITS_TOLERANCE, f"{what}: row {int(error.argmax())} is off by {error.max():.2e}"


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_greedy_tokens_equal_transformers(family, seed, tmp_path):
    folder, oracle = make_folder(family, tmp_path, seed)
    prompts = random_prompts(seed)
    pages = Pages(open_folder(folder), len(prompts))
    # All prompts in one ragged batch: the one-token prompt first, as a decode.
    rows = pages.run(list(enumerate(prompts)))
    for prompt, logits in zip(prompts, rows, strict=True):
        assert_logits_equal(logits, oracle_logits(oracle, prompt), f"prompt of {len(prompt)}")
    tokens = [list(prompt) for prompt in prompts]
    for step in range(6):
        for seq, logits in enumerate(rows):
            expected = oracle_logits(oracle, tokens[seq])[-1]
            assert_logits_equal(logits[-1:], expected[None], f"step {step} of sequence {seq}")
            assert int(logits[-1].argmax()) == int(expected.argmax())
            tokens[seq].append(int(logits[-1].argmax()))
        rows = pages.run([(seq, tokens[seq][-1:]) for seq in range(len(tokens))])


@pytest.mark.parametrize("family", ["smollm2", "mistral", "qwen3", "mixtral", "qwen3-moe"])
def test_a_prompt_in_chunks_gives_the_same_logits(family, tmp_path):
    folder, oracle = make_folder(family, tmp_path)
    prompt = random_prompts(3)[-1]
    pages = Pages(open_folder(folder), 1)
    rows = [pages.run([(0, prompt[start:end])])[0] for start, end in ((0, 1), (1, 8), (8, 9), (9, len(prompt)))]
    assert_logits_equal(torch.cat(rows), oracle_logits(oracle, prompt), "chunks")


def test_this_oracle_sees_a_wrong_scale(tmp_path):
    """Negative control: the comparison fails when attention is subtly wrong."""
    folder, oracle = make_folder("llama", tmp_path)
    prompt = random_prompts(0)[-1]
    for layer in oracle.model.layers:
        layer.self_attn.scaling *= 1.001
    pages = Pages(open_folder(folder), 1)
    with pytest.raises(AssertionError, match="is off by"):
        assert_logits_equal(pages.run([(0, prompt)])[0], oracle_logits(oracle, prompt), "wrong scale")


def test_sharded_weights_load_like_a_single_file(tmp_path):
    folder, oracle = make_folder("qwen2", tmp_path / "single")
    oracle.save_pretrained(tmp_path / "sharded", max_shard_size="40KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    prompt = random_prompts(0)[-1]
    single, sharded = (Pages(open_folder(tmp_path / name), 1).run([(0, prompt)])[0] for name in ("single", "sharded"))
    assert torch.equal(single, sharded)
    assert folder.name == "single"


def test_bfloat16_runs_and_stays_near_fp32(tmp_path):
    folder, oracle = make_folder("smollm2", tmp_path)
    prompt = random_prompts(0)[-1]
    model = load_model(
        folder, dtype=torch.bfloat16, device=torch.device("cpu"), attention_backend="torch", block_size=4
    )
    logits = Pages(model, 1).run([(0, prompt)])[0]
    expected = oracle_logits(oracle, prompt)
    assert logits.dtype == torch.float32
    # bf16 keeps 8 bits: each of the two layers rounds a few times, errors near 1 % of the logits' spread.
    assert (logits - expected).std() < 0.05 * expected.std()
