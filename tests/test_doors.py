"""The engine reaches a feature by its name, and only when a model or an option asks for it."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import twophase
from tests.model.tiny import make_folder
from twophase.core.errors import ConfigError
from twophase.doors import FEATURES, feature
from twophase.model.config import FAMILIES_OF_FEATURES, load_config
from twophase.model.weights import load_weights
from twophase_features.quantization import schemes


@pytest.fixture
def without_features(monkeypatch):
    """Python finds no package of features."""
    for module in [name for name in sys.modules if name.startswith(f"{FEATURES}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, FEATURES, None)


def test_every_feature_that_the_engine_names_is_there():
    sources = [path.read_text() for path in (Path(__file__).parents[1] / "src/twophase").rglob("*.py")]
    named = {name for source in sources for name in re.findall(r'feature\("([\w.]+)"\)', source)}
    assert {"windows.mixed_backend", "experts.weights"} <= named
    for name in named | set(FAMILIES_OF_FEATURES.values()) | set(twophase._OF_FEATURES.values()):
        assert importlib.util.find_spec(f"{FEATURES}.{name}"), name
    assert all(name in feature(module).FAMILIES for name, module in FAMILIES_OF_FEATURES.items())


def test_a_feature_is_the_module_itself():
    assert feature("quantization.schemes") is schemes


@pytest.mark.parametrize("name", ["no_such_feature", "quantization.no_such_module"])
def test_a_missing_feature_is_named_with_the_fix(name):
    with pytest.raises(ConfigError, match=rf"{FEATURES}\.{name}.*Install {FEATURES}"):
        feature(name)


@pytest.mark.parametrize("family", ["llama", "llama-biases", "smollm2"])
def test_plain_llama_is_read_without_any_feature(family, tmp_path, without_features):
    folder, _ = make_folder(family, tmp_path)
    assert len(load_weights(folder, load_config(folder), torch.float32, torch.device("cpu")).layers) == 2


@pytest.mark.parametrize(
    ("family", "module"),
    [
        *(("mistral", "families"), ("qwen3", "families"), ("gemma3", "gemma3"), ("mixtral", "experts.config")),
        *(("llama3-rope", "rope_scaling"), ("linear-rope", "rope_scaling")),
    ],
)
def test_another_model_names_the_feature_that_reads_it(family, module, tmp_path, without_features):
    folder, _ = make_folder(family, tmp_path)
    with pytest.raises(ConfigError, match=rf"needs {FEATURES}\.{module}, which is not installed\. Install"):
        load_config(folder)


def test_rounded_weights_name_the_feature_that_rounds(tmp_path, without_features):
    folder, _ = make_folder("llama", tmp_path)
    with pytest.raises(ConfigError, match=rf"needs {FEATURES}\.quantization\.loader"):
        load_weights(folder, load_config(folder), torch.float32, torch.device("cpu"), scheme=schemes.SCHEMES["int8"])


def test_a_package_that_a_feature_needs_is_not_taken_for_the_feature(monkeypatch):
    monkeypatch.delitem(sys.modules, schemes.__name__)
    monkeypatch.setitem(sys.modules, "dataclasses", None)
    with pytest.raises(ModuleNotFoundError, match="dataclasses"):
        feature("quantization.schemes")
