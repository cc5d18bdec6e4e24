"""Arguments, exit codes, signals and pipes."""

import signal
import subprocess
import sys

import pytest

from tests.tools.conftest import start_cli
from twophase import __version__
from twophase.core.errors import ConfigError, InvalidRequestError, ModelFolderError, OutOfBlocksError
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_tools.cli.engine_options import engine_options, given
from twophase_tools.cli.main import build_parser


def test_generate_defaults():
    args = build_parser().parse_args(["generate", "hello"])
    assert (args.command, args.prompt, args.model) == ("generate", "hello", DEFAULT_MODEL)
    assert (engine_options(args), given(args, "sampling."), args.chat) == ({}, {}, False)


@pytest.mark.parametrize(
    "words",
    ["", "nonsense", "model", "bench", "generate", "generate x --json --stream", "generate x --max-tokens many"],
)
def test_wrong_arguments_print_usage_and_exit_2(twophase, words):
    exit_code, out, err = twophase(*words.split())
    assert exit_code == 2
    assert out == ""
    assert err.startswith("usage: twophase")


def test_help_and_parsing_import_nothing_heavy():
    code = (
        "import sys; from twophase_tools.cli.main import build_parser; build_parser().format_help();"
        "heavy = {'torch', 'triton', 'numpy', 'transformers', 'rich', 'twophase.engine'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", ["twophase", "twophase_tools"])
def test_python_m(module):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, f"twophase {__version__}")


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ConfigError("the rule"), 2),
        (InvalidRequestError("the rule"), 2),
        (ModelFolderError("the rule"), 2),
        (OutOfBlocksError("the rule"), 1),
        (OSError("the rule"), 1),
    ],
)
def test_an_error_is_one_message(twophase, monkeypatch, error, exit_code):
    def run(args):
        raise error

    monkeypatch.setattr("twophase_tools.cli.doctor.run", run)
    assert twophase("doctor") == (exit_code, "", "twophase: the rule\n")


def test_a_bug_keeps_its_traceback(twophase, monkeypatch):
    def run(args):
        raise KeyError("ours to repair")

    monkeypatch.setattr("twophase_tools.cli.doctor.run", run)
    with pytest.raises(KeyError):
        twophase("doctor")


TALK = ("generate", "hello", "--stream", "--max-tokens", "30000", "--model")


def test_ctrl_c_is_quiet(talkative_folder):
    process = start_cli(*TALK, talkative_folder)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


def test_a_reader_that_goes_away_ends_it_quietly(talkative_folder):
    process = start_cli(*TALK, talkative_folder)
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == ""
    process.stderr.close()
