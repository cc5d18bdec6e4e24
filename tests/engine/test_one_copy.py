"""Engines of one process share the weights of a folder, as long as one of them lives."""

import gc
import os
import shutil
import weakref

from twophase import LLM


def opened(folder, **options) -> LLM:
    return LLM(folder, **{"device": "cpu", "num_kv_blocks": 8} | options)


def test_engines_of_one_folder_share_its_weights_and_nothing_else(tiny_folder):
    one, other = opened(tiny_folder), opened(tiny_folder, block_size=32)
    assert one.model.weights is other.model.weights
    assert one.kv_cache is not other.kv_cache
    weights = weakref.ref(one.model.weights)
    del one, other
    gc.collect()
    assert weights() is None, "nobody uses them"


def test_other_weights_are_not_shared(tiny_folder):
    one = opened(tiny_folder)
    for options in ({"dtype": "bfloat16"}, {"quantization": "int8"}):
        assert opened(tiny_folder, **options).model.weights is not one.model.weights, options
    os.utime(tiny_folder / "model.safetensors", (0, 0))  # another file of the same name
    assert opened(tiny_folder).model.weights is not one.model.weights


def test_another_model_behind_the_same_link_is_not_shared(tiny_folder, tmp_path):
    copy, link = tmp_path / "copy", tmp_path / "current"
    shutil.copytree(tiny_folder, copy)  # with its times
    link.symlink_to(tiny_folder)
    (copy / ".#config.json").symlink_to("nowhere")  # an editor's lock
    one = opened(link)
    link.unlink()
    link.symlink_to(copy)
    assert opened(link).model.weights is not one.model.weights
