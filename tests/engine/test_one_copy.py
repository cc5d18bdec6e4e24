"""Engines of one process share the weights of a folder, as long as one of them lives."""

import gc
import os
import shutil
import weakref

import pytest

from twophase import LLM


@pytest.fixture
def folder(tiny_folder, tmp_path):
    """A folder that no engine of another test has open."""
    return shutil.copytree(tiny_folder, tmp_path / "tiny")  # with its times


def opened(folder, **options) -> LLM:
    return LLM(folder, **{"device": "cpu", "num_kv_blocks": 8} | options)


def test_engines_of_one_folder_share_its_weights_and_nothing_else(folder):
    one, other = opened(folder), opened(folder, block_size=32)
    assert one.model.weights is other.model.weights
    assert one.kv_cache is not other.kv_cache
    weights = weakref.ref(one.model.weights)
    del one, other
    gc.collect()
    assert weights() is None, "nobody uses them"


def test_other_weights_are_not_shared(folder):
    one = opened(folder)
    for options in ({"dtype": "bfloat16"}, {"quantization": "int8"}):
        assert opened(folder, **options).model.weights is not one.model.weights, options
    os.utime(folder / "model.safetensors", (0, 0))  # another file of the same name
    assert opened(folder).model.weights is not one.model.weights


def test_another_model_behind_the_same_link_is_not_shared(folder, tmp_path):
    copy, link = tmp_path / "copy", tmp_path / "current"
    shutil.copytree(folder, copy)
    link.symlink_to(folder)
    (copy / ".#config.json").symlink_to("nowhere")  # an editor's lock
    one = opened(link)
    link.unlink()
    link.symlink_to(copy)
    assert opened(link).model.weights is not one.model.weights
