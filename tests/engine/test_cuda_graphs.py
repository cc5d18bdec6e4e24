"""On a GPU: decode steps replayed as graphs give what eager steps give."""

import logging

import pytest
import torch

from tests.engine.engines import BLOCK_SIZE, make_engine, prompt_of, run, tokens_of
from tests.model.tiny import make_folder
from twophase.core.sampling_params import SamplingParams
from twophase.model.load import load_model

PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((3, 5, 9, 17, 40))]
PARAMS = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (20, 9, 14, 20, 3)]


@pytest.fixture(scope="module")
def cuda_model(tmp_path_factory):
    # Head size 16: the smallest that tensor cores multiply.
    folder, _ = make_folder("llama", tmp_path_factory.mktemp("cuda"), head_dim=16)
    options = {"dtype": torch.float32, "device": torch.device("cuda"), "attention_backend": "triton"}
    return load_model(folder, block_size=BLOCK_SIZE, **options)


@pytest.mark.gpu
def test_graphs_equal_eager(cuda_model):
    engine = make_engine(cuda_model)
    eager = make_engine(cuda_model)
    eager._runner._graphs = None
    outputs = run(engine, PROMPTS, PARAMS)
    assert [tokens_of(output) for output in outputs] == [tokens_of(output) for output in run(eager, PROMPTS, PARAMS)]
    # Batch sizes 5, 4, 3, 2 and 1 were padded to these.
    assert {rows for rows, _ in engine._runner._graphs._graphs} == {8, 4, 2}


@pytest.mark.gpu
def test_a_failed_capture_is_logged_and_decodes_go_on(cuda_model, monkeypatch, caplog):
    engine = make_engine(cuda_model)
    expected = [tokens_of(output) for output in run(make_engine(cuda_model), PROMPTS, PARAMS)]

    def no_capture(packed, context):
        raise RuntimeError("no capture today")

    monkeypatch.setattr(engine._runner._graphs, "_capture", no_capture)
    with caplog.at_level(logging.WARNING):
        assert [tokens_of(output) for output in run(engine, PROMPTS, PARAMS)] == expected
    assert "no capture today" in caplog.text


@pytest.mark.gpu
def test_the_torch_backend_runs_eagerly(tmp_path):
    folder, _ = make_folder("llama", tmp_path)
    options = {"dtype": torch.float32, "device": torch.device("cuda"), "attention_backend": "torch"}
    engine = make_engine(load_model(folder, block_size=BLOCK_SIZE, **options))
    assert engine._runner._graphs is None
    assert len(tokens_of(run(engine, PROMPTS[:1])[0])) == 8
