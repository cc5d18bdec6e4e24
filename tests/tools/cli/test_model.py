"""`twophase model`."""

from twophase_features.model_store import prepare


def test_path_needs_no_model(twophase, monkeypatch, tmp_path):
    monkeypatch.setenv("TWOPHASE_HOME", str(tmp_path))
    assert twophase("model", "path") == (0, f"{tmp_path / prepare.DEFAULT_MODEL}\n", "")


def test_verify_says_that_there_is_nothing(twophase, monkeypatch, tmp_path):
    monkeypatch.setenv("TWOPHASE_HOME", str(tmp_path))
    exit_code, out, err = twophase("model", "verify")
    assert (exit_code, out) == (2, "")
    assert "twophase model prepare" in err


def test_prepare_and_verify_print_the_folder(twophase, smollm2_folder):
    for action in ("prepare", "verify"):
        exit_code, out, _ = twophase("model", action)
        assert (exit_code, out) == (0, f"{smollm2_folder}\n")
