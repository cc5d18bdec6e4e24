"""Weights files: what is wrong with them is said with the file, the tensor and the cure."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.model.tiny import make_folder
from tests.mutation import KillTable, Mutant
from twophase.core.errors import ModelFolderError
from twophase.model import tensor_files
from twophase.model.config import load_config
from twophase.model.weights import load_weights

DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def folder(tmp_path):
    return make_folder("llama", tmp_path / "model")[0]


def load(folder, dtype=torch.float32):
    return load_weights(folder, load_config(folder), dtype, torch.device("cpu"))


def change(folder, edit):
    """Rewrite the weights file after `edit` changed its tensors."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def shard(folder):
    """Split the weights in two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in files.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_embedding_keeps_the_smaller_dtype(tmp_path):
    folder = make_folder("llama", tmp_path)[0]
    change(folder, lambda tensors: tensors.update({k: v.bfloat16() for k, v in tensors.items()}))
    assert load(folder, torch.float32).embed.dtype == torch.bfloat16
    assert load(folder, torch.float16).embed.dtype == torch.float16
    assert load(folder, torch.float32).final_norm.dtype == torch.float32


HEADERS = {
    "of 3 GB": ((3 * 2**30).to_bytes(8, "little"), "cannot be read"),
    "of 2 ** 64 bytes": (b"\xff" * 8, "cannot be read"),
    "a list": (b"\x02\0\0\0\0\0\0\0[]", "cannot be read"),
    "of text": (b'\x07\0\0\0\0\0\0\0{"a":1}', "cannot be read"),
    "without offsets": (b'\x08\0\0\0\0\0\0\0{"a":{}}', "cannot be read"),
    "nested": ((20_000).to_bytes(8, "little") + b'{"a":' * 4000, "cannot be read"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_of_another_form(case, folder):
    """The file may be sparse: what it declares costs nothing, and is not read."""
    content, said = HEADERS[case]
    with (folder / "model.safetensors").open("wb") as file:
        file.write(content)
        file.truncate(4 * 2**30)
    with pytest.raises(ModelFolderError, match=rf"model\.safetensors {said}.*Download"):
        load(folder)


Q_BIAS = "model.layers.0.self_attn.q_proj.bias"
WRONG = {
    "missing": (lambda tensors: tensors.pop(DOWN), rf"model\.safetensors lacks {DOWN}.*Download"),
    "unexpected": (lambda tensors: tensors.update({Q_BIAS: torch.ones(48)}), rf"holds {Q_BIAS}, which config\.json"),
    "of another shape": (
        lambda tensors: tensors.update({DOWN: torch.ones(48, 79)}),
        rf"{DOWN} has shape \[48, 79\], but config.json calls for \[48, 80\]",
    ),
    "quantised": (
        lambda tensors: tensors.update({DOWN: torch.ones(48, 80, dtype=torch.int8)}),
        rf"{DOWN} is stored as I8; supported here: F32, F16, BF16",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_tensor_that_is(case, folder):
    edit, said = WRONG[case]
    change(folder, edit)
    with pytest.raises(ModelFolderError, match=said):
        load(folder)


def test_tied_weights_saved_twice_must_agree(tmp_path):
    folder = make_folder("smollm2", tmp_path)[0]
    change(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    load(folder)
    change(folder, lambda tensors: tensors["lm_head.weight"].add_(1))
    with pytest.raises(ModelFolderError, match=r"lm_head\.weight differs.*tie_word_embeddings"):
        load(folder)


def test_broken_index(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(ModelFolderError, match="no 'weight_map'"):
        load(folder)
    (folder / "model.safetensors.index.json").write_text("{")
    with pytest.raises(ModelFolderError, match=r"index\.json is not valid JSON"):
        load(folder)


OUTSIDE = [
    "../b.safetensors",
    "/etc/b.safetensors",
    "sub/b.safetensors",
    "..\\b.safetensors",
    "b.bin",
    "",
    ".",
    5,
    None,
    ["b"],
]


def check_index(folder):
    """The index names files of the folder, and nothing else is opened, whatever it names."""
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]

    def check(module) -> None:
        for name in (*OUTSIDE, str(folder.parent / "b.safetensors")):
            index.write_text(json.dumps({"weight_map": weight_map | {DOWN: name}}))
            with pytest.raises(
                ModelFolderError, match=r"index\.json: 'weight_map' must name a safetensors file in the sam"
            ):
                module.TensorFiles(folder)
        index.write_text(json.dumps({"weight_map": weight_map}))
        module.TensorFiles(folder)

    return check


@pytest.fixture
def sharded(folder):
    shard(folder)
    (folder / "sub").mkdir()
    for place in (folder.parent, folder / "sub"):
        (place / "b.safetensors").write_bytes((folder / "b.safetensors").read_bytes())
    return folder


def test_the_index_leads_nowhere_else(sharded):
    check_index(sharded)(tensor_files)


def test_a_link_in_the_folder_is_followed(sharded):
    """As in Hugging Face's cache: snapshots/<commit>/a.safetensors -> ../../blobs/<hash>."""
    blobs = sharded.parent / "blobs"
    blobs.mkdir()
    (sharded / "a.safetensors").rename(blobs / "1234")
    (sharded / "a.safetensors").symlink_to("../blobs/1234")
    load(sharded)


@pytest.mark.mutants
def test_mutant(sharded):
    mutant = Mutant("the index leads out", "twophase.model.tensor_files", " or Path(name).name != name", "")
    KillTable.record(mutant, check_index(sharded))
