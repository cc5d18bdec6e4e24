"""The engine reaches a feature by its name, and only when it is asked for."""

import sys

import pytest

from twophase.core.errors import ConfigError
from twophase.doors import FEATURES, feature


def test_a_feature_is_the_module_itself():
    import twophase_features.quantization.schemes as schemes

    assert feature("quantization.schemes") is schemes


@pytest.mark.parametrize("name", ["no_such_feature", "quantization.no_such_module"])
def test_a_missing_feature_is_named_with_the_fix(name):
    with pytest.raises(ConfigError, match=rf"{FEATURES}\.{name}.*Install {FEATURES}"):
        feature(name)


def test_without_the_package_of_features_the_error_names_the_package(monkeypatch):
    for module in [name for name in sys.modules if name.partition(".")[0] == FEATURES]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if "editable" not in str(finder)])
    with pytest.raises(ConfigError, match=f"Python finds no {FEATURES}\\."):
        feature("quantization.schemes")


def test_a_package_that_a_feature_needs_is_not_taken_for_the_feature(monkeypatch):
    monkeypatch.delitem(sys.modules, "twophase_features.quantization.schemes", raising=False)
    monkeypatch.setitem(sys.modules, "dataclasses", None)
    with pytest.raises(ModuleNotFoundError, match="dataclasses"):
        feature("quantization.schemes")
