"""A plan as vLLM's command lines, and as the values of a Kubernetes chart."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.tools.capacity.plans import plan
from twophase.core.errors import ConfigError
from twophase_tools.capacity.elsewhere import production_stack_values, vllm_commands
from twophase_tools.cli.main import main

POOLS = {"prefill": {"hardware": "h100"}, "decode": {"hardware": "h200"}, "link_bytes_per_s": 50e9}
VLLM = Path(__file__).parents[3] / ".venv-vllm/bin/python"
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
args = make_arg_parser(FlexibleArgumentParser()).parse_args(json.loads(sys.argv[1]))
validate_parsed_serve_args(args)
print(json.dumps([args.kv_cache_dtype, args.max_num_batched_tokens, args.kv_transfer_config is not None]))
"""


def commands(**changes) -> list[list[str]]:
    lines = vllm_commands(plan(**changes)).splitlines()
    return [shlex.split(line) for line in lines if not line.startswith("#")]


def options(command: list[str]) -> dict[str, str]:
    assert command[:2] == ["vllm", "serve"]
    return dict(zip(command[3::2], command[4::2], strict=True))


def test_one_kind_of_engine():
    [command] = commands(chunk_size=512, tensor_parallel_size=2)
    assert command[2] == "meta-llama/Meta-Llama-3-8B"
    found = options(command)
    assert found["--tensor-parallel-size"] == "2"
    assert found["--max-num-batched-tokens"] == "512", "a chunk is a step's tokens"
    assert found["--gpu-memory-utilization"] == "0.9"
    assert "--quantization" not in found
    assert "--kv-transfer-config" not in found


def test_pools_send_their_pages():
    prefill, decode = (options(command) for command in commands(pools=POOLS, quantization="fp8"))
    assert json.loads(prefill["--kv-transfer-config"])["kv_connector"] == "NixlConnector"
    assert prefill == decode
    assert prefill["--quantization"] == "fp8"
    [first, *_] = vllm_commands(plan(pools=POOLS)).splitlines()
    assert first.endswith("H100 SXM")


def test_as_many_replicas_as_the_rate_needs():
    few, many = (yaml.safe_load(production_stack_values(plan(workload=w))) for w in (
        {"rate": 1, "prompt_tokens": 1000, "output_tokens": 250}, {"rate": 100, "prompt_tokens": 1000, "output_tokens": 250}
    ))  # fmt: skip
    few, many = (each["servingEngineSpec"]["modelSpec"][0] for each in (few, many))
    assert few["replicaCount"] == 1
    plan_of_one = plan(workload={"rate": 100, "prompt_tokens": 1000, "output_tokens": 250})
    served = plan_of_one.saturated.requests_per_s
    assert (many["replicaCount"] - 1) * 0.8 * served < 100 <= many["replicaCount"] * 0.8 * served
    assert many["vllmConfig"]["extraArgs"][:2] == ["--kv-cache-dtype", "auto"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization": "int4"}, "vLLM rounds to fp8 when it loads a model, not to int4"),
        ({"kv_cache_dtype": "int8"}, "vLLM has no K/V cache in int8"),
        ({"model": "llama-3-70b"}, "no request fits"),
    ],
)
def test_what_vllm_has_not(changes, message):
    with pytest.raises(ConfigError, match=message):
        vllm_commands(plan(**changes))


def test_pools_are_not_the_charts():
    with pytest.raises(ConfigError, match="LMCache"):
        production_stack_values(plan(pools=POOLS))


def test_the_command_line(tmp_path, capsys):
    assert main(["plan", "--example"]) == 0
    path = tmp_path / "plan.yaml"
    path.write_text(capsys.readouterr().out)
    assert main(["plan", str(path), "--for", "vllm"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("vllm serve meta-llama/Meta-Llama-3-8B --dtype bfloat16")
    assert main(["plan", str(path), "--for", "kubernetes"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["servingEngineSpec"]["modelSpec"][0]["requestGPU"] == 1


@pytest.mark.skipif(not VLLM.exists(), reason="not run here: `make vllm` installs vLLM")
def test_vllm_accepts_the_commands():
    for command in [*commands(), *commands(pools=POOLS, quantization="fp8", kv_cache_dtype="fp8_e4m3")]:
        parsed = subprocess.run(
            [VLLM, "-c", PARSE, json.dumps(command[2:])], capture_output=True, text=True, check=True
        )
        cache, tokens, sends = json.loads(parsed.stdout.splitlines()[-1])
        found = options(command)
        assert (cache, str(tokens)) == (found["--kv-cache-dtype"], found["--max-num-batched-tokens"])
        assert sends == ("--kv-transfer-config" in found)
