"""The soak's model: a folder as any other, whose tokens are bytes."""

from transformers import AutoModelForCausalLM
from transformers.utils import logging

from twophase.core.request import SamplingParams
from twophase.llm import LLM
from twophase_tools.bench.tiny_model import write_tiny_model


def test_it_is_read_and_equals_transformers(tmp_path):
    logging.disable_progress_bar()
    write_tiny_model(tmp_path, max_model_len=64)
    llm = LLM(tmp_path, device="cpu", num_kv_blocks=16)
    prompt = "The quick brown fox, 日本"
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    output = llm.generate(prompt, params, use_tqdm=False)[0]
    assert len(output.prompt_token_ids) == len(prompt.encode())
    assert llm.scheduler.config.max_model_len == 64
    import torch

    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.tensor([output.prompt_token_ids])
    for token in output.outputs[0].token_ids:
        assert int(model(ids).logits[0, -1].argmax()) == token
        ids = torch.cat([ids, torch.tensor([[token]])], dim=1)


def test_a_seed_gives_the_same_model(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        write_tiny_model(tmp_path / name, seed=int(name == "c"))
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c
