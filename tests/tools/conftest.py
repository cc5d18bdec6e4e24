"""The command as users run it: a process of its own, without the tests' environment."""

import os
import subprocess
import sys

import pytest

from tests.engine.conftest import tiny_folder, tiny_model  # noqa: F401  (fixtures)
from tests.engine.tokenizers_for_tests import byte_level
from tests.model.conftest import smollm2_folder  # noqa: F401  (a fixture)
from tests.model.tiny import make_folder


def child_environment(**changes):
    """This process's environment without the variables that name a mode of kernels, and with `changes`."""
    named = ("TRITON_INTERPRET", "TWOPHASE_KERNELS")
    environment = {key: value for key, value in os.environ.items() if key not in named}
    return environment | {"OMP_NUM_THREADS": "1"} | changes


def run_cli(*args, stdin=None, **environment):
    return subprocess.run(
        [sys.executable, "-m", "twophase_tools", *map(str, args)],
        env=child_environment(**environment),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
    )


def start_cli(*args):
    return subprocess.Popen(
        [sys.executable, "-m", "twophase_tools", *map(str, args)],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def twophase(capsys):
    """Run the command in this process, which is quicker: twophase(*args) -> (exit code, stdout, stderr)."""
    from twophase_tools.cli.main import main

    def run(*args):
        capsys.readouterr()
        try:
            exit_code = main([str(arg) for arg in args])
        except SystemExit as error:  # argparse
            exit_code = error.code
        captured = capsys.readouterr()
        return exit_code, captured.out, captured.err

    return run


@pytest.fixture
def without_triton(tmp_path):
    """A folder to put first on PYTHONPATH: importing triton then fails as if it were not installed."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError(\"No module named 'triton'\")\n")
    return tmp_path


@pytest.fixture(scope="session")
def talkative_folder(tmp_path_factory):
    """A random Llama with room for a text that takes long enough to be interrupted."""
    folder = tmp_path_factory.mktemp("talkative")
    tokenizer = byte_level()
    make_folder("llama", folder, vocab_size=tokenizer.vocab_size, max_position_embeddings=32768)
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    return folder
