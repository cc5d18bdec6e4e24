"""`twophase serve` as a process: it starts, serves, and stops on a signal without losing what it has accepted."""

import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.server.conftest import PATIENCE_S, until
from tests.tools.conftest import child_environment, talkative_folder, twophase  # noqa: F401  (fixtures)
from twophase.core.errors import ConfigError
from twophase_server.settings import ServerSettings
from twophase_tools.cli.engine_options import engine_options
from twophase_tools.cli.main import build_parser
from twophase_tools.cli.serve import settings_of, with_config_file


def start(*args):
    return subprocess.Popen(
        [sys.executable, "-m", "twophase_tools", "serve", "--port", "0", *map(str, args)],
        env=child_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def url_of(process):
    for line in process.stderr:
        found = re.search(r"twophase serve: .* on (http://\S+)/v1", line)
        if found:
            return found[1]
    raise AssertionError("it did not start")


def test_a_signal_loses_nothing(talkative_folder):  # noqa: F811
    """600 steps are more than the signal takes."""
    process = start(
        "--model", talkative_folder, "--num-kv-blocks", 200, "--served-model-name", "m", "--log-level", "warning"
    )
    try:
        url = url_of(process)
        body = {"prompt": "The fox", "max_tokens": 600, "ignore_eos": True, "stream": True, "model": "m"}
        with (
            httpx.Client(base_url=url, timeout=PATIENCE_S) as http,
            http.stream("POST", "/v1/completions", json=body) as answer,
        ):
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            assert "SIGTERM: finishing 1 requests" in process.stderr.readline()
            rest = [line for line in lines if line]
        assert '"finish_reason":"length"' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_second_signal_ends_it(talkative_folder):  # noqa: F811
    process = start("--model", talkative_folder, "--num-kv-blocks", 3000, "--log-level", "critical")
    try:
        url = url_of(process)
        body = {"model": talkative_folder.name, "prompt": "The fox", "max_tokens": 20_000, "ignore_eos": True}
        body |= {"stream": True}
        with (
            ThreadPoolExecutor(1) as pool,
            httpx.Client(base_url=url, timeout=PATIENCE_S) as http,
            http.stream("POST", "/v1/completions", json=body) as answer,
        ):
            lines = answer.iter_lines()
            next(lines)
            waiting = pool.submit(http.post, "/v1/completions", json=body | {"stream": False})
            until(lambda: re.search(r"num_requests_running{.*} 2.0", http.get("/metrics").text) or waiting.done())
            process.send_signal(signal.SIGINT)
            assert "SIGINT: finishing 2 requests" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert (waiting.result().status_code, waiting.result().json()["error"]["code"]) == (503, "draining")
            assert process.wait(PATIENCE_S) == 0
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
    finally:
        process.kill()
        process.communicate()


def test_what_is_not_said_is_the_default():
    args = build_parser().parse_args(["serve"])
    assert settings_of(args) == ServerSettings()
    assert engine_options(args) == {}


def test_options():
    words = (
        "serve --host 0.0.0.0 --port 81 --served-model-name m --api-keys k.toml --max-queue 5 --max-body-bytes 6 "
        "--max-prompt-tokens 7 --max-prompts 8 --max-n 9 --deadline 10 --drain-timeout 11 --read-timeout 12 "
        "--default-max-tokens 13 --allow-origin a --allow-origin b --ssl-certfile c --ssl-keyfile d "
        "--log-level info --policy fair --kv-cache-dtype int8 --max-model-len 99"
    )
    args = build_parser().parse_args(words.split())
    assert settings_of(args) == ServerSettings(
        host="0.0.0.0", port=81, served_model_name="m", api_keys="k.toml", max_queue=5, max_body_bytes=6,
        max_prompt_tokens=7, max_prompts=8, max_n=9, deadline_s=10.0, drain_timeout_s=11.0, read_timeout_s=12.0, log_level="info",
        default_max_tokens=13, allowed_origins=("a", "b"), ssl_certfile="c", ssl_keyfile="d",
    )  # fmt: skip
    assert set(engine_options(args)) == {"policy", "kv_cache_dtype", "max_model_len"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--port 70000", "port must be a whole number >= 0 and <= 65535"),
        ("--max-queue 0", "max_queue must be a whole number >= 1"),
        ("--deadline -1", "deadline_s must be"),
        ("--api-keys no.toml", "cannot be read"),
        ("--ssl-certfile no.pem", "cannot use ssl_certfile 'no.pem'"),
        ("--config no.toml", "--config must name a file that can be read, got 'no.toml'"),
        ("--host nowhere.invalid", "cannot listen on host 'nowhere.invalid'"),
        ("--policy nonsense", "nonsense"),
    ],
)
def test_what_cannot_be_is_refused_before_a_model_is_opened(twophase, words, said):  # noqa: F811
    exit_code, out, err = twophase("serve", "--model", "/no/such/folder", *words.split())
    assert exit_code == 2
    assert out == ""
    assert said in err


CONFIG = """
port = 70
max-queue = 5
max_n = 6
deadline = 2.5
served-model-name = "m"
allow-origin = ["a", "b"]
max-model-len = 99
"""


@pytest.fixture
def parsed(tmp_path):
    """The arguments of `serve` with a configuration file, and others before and behind."""

    def parsed(content, before="", behind=""):
        file = tmp_path / "serve.toml"
        file.write_text(content)
        argv = ["serve", *before.split(), "--config", str(file), *behind.split()]
        args = build_parser().parse_args(argv)
        args.argv = argv
        return with_config_file(args)

    return parsed


def test_options_of_a_file_and_the_command_line_which_wins(parsed):
    args = parsed(CONFIG)
    assert settings_of(args) == ServerSettings(
        port=70, max_queue=5, max_n=6, deadline_s=2.5, served_model_name="m", allowed_origins=("a", "b")
    )
    assert engine_options(args) == {"max_model_len": 99}
    args = parsed(CONFIG, before="--port 71", behind="--max-queue 8")
    assert (args.port, args.max_queue, args.max_n) == (71, 8, 6)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("prot = 3", "prot"),
        ("port = 'x'", "port"),
        ("[server]\nport = 3", "server"),
        ("log-level = 'loud'", "log-level"),
    ],
)
def test_wrong_options_of_a_file(parsed, content, said, capsys):
    with pytest.raises(SystemExit) as caught:
        parsed(content)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
    with pytest.raises(ConfigError, match="must name a TOML file"):
        parsed("port: 3")
