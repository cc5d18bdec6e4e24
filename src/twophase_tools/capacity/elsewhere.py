"""A plan that outgrows this engine: the same deployment as vLLM's command line, or as a Kubernetes cluster's values.

vLLM's options have the plan's names, for this project took them from there. A cluster is described for vLLM's
production stack, https://github.com/vllm-project/production-stack (chart `vllm-stack`): engines behind a router, from
one file of values, whose schema the chart publishes. Prefill and decode apart send K and V by vLLM's NixlConnector.
"""

import json
import shlex

import yaml

from twophase.core.errors import ConfigError
from twophase_tools.capacity.config import PlanConfig
from twophase_tools.capacity.engine import OPENED_AS
from twophase_tools.capacity.plan import CROWDED, Plan

KV_DTYPES = ("auto", "bfloat16", "float16", "fp8_e4m3")  # of a plan's, those that vLLM has by the same name
IMAGE, IMAGE_TAG = "vllm/vllm-openai", "v0.32.0"  # whose options these are
NIXL = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})


def vllm_arguments(config: PlanConfig) -> dict[str, str]:
    """The options of `vllm serve`, by name without dashes, of one engine.

    Raises:
        ConfigError: vLLM has no such form of the weights or of the cache.
    """
    if config.quantization not in (None, "fp8"):
        raise ConfigError(
            f"vLLM rounds to fp8 when it loads a model, not to {config.quantization}. Plan with "
            "quantization: fp8, or name a model whose weights are quantised already."
        )
    if config.kv_cache_dtype not in KV_DTYPES:
        raise ConfigError(f"vLLM has no K/V cache in {config.kv_cache_dtype}; it has {', '.join(KV_DTYPES)}.")
    options = {
        "dtype": config.dtype,
        "kv-cache-dtype": config.kv_cache_dtype,
        "tensor-parallel-size": str(config.tensor_parallel_size),
        "gpu-memory-utilization": f"{config.gpu_memory_utilization:g}",
        "block-size": str(config.block_size),
        "max-model-len": str(config.max_model_len),
        "max-num-seqs": str(config.max_num_seqs),
        "max-num-batched-tokens": str(config.step_tokens),
    }
    return options | ({} if config.quantization is None else {"quantization": config.quantization})


def vllm_commands(plan: Plan) -> str:
    """Shell commands, each with a comment that says on how many machines to run it.

    Raises:
        ConfigError: As `vllm_arguments`; or the plan has no room for a request, or not enough engines.
    """
    lines = []
    for name, of_kind, number, extra in _engines(plan):
        gpus = of_kind.tensor_parallel_size
        lines.append(f"# {name}: {number} x {gpus} {of_kind.hardware.name}")
        command = ["vllm", "serve", OPENED_AS.get(of_kind.model, of_kind.model)]
        for option, value in (vllm_arguments(of_kind) | extra).items():
            command += [f"--{option}", value]
        lines.append(shlex.join(command))
    return "\n".join(lines)


def production_stack_values(plan: Plan) -> str:
    """The values of the chart `vllm-stack`, as YAML: a kind of engine for each of the plan's, behind a router.

    Raises:
        ConfigError: As `vllm_commands`; or the plan has pools, which the chart connects in a way of its own.
    """
    if plan.config.pools is not None:
        raise ConfigError(
            "the chart sends K and V between pools by LMCache, of which a plan knows nothing. Use --for vllm, or plan "
            "one kind of engine."
        )
    [(_, config, number, _)] = _engines(plan)
    arguments = vllm_arguments(config)
    known = {  # the chart's names, some of them numbers
        "dtype": arguments.pop("dtype"),
        "tensorParallelSize": int(arguments.pop("tensor-parallel-size")),
        "gpuMemoryUtilization": float(arguments.pop("gpu-memory-utilization")),
        "maxModelLen": int(arguments.pop("max-model-len")),
        "maxNumSeqs": int(arguments.pop("max-num-seqs")),
    }
    extra = [word for option, value in arguments.items() for word in (f"--{option}", value)]
    model = {
        "name": config.model.rsplit("/", 1)[-1].lower().replace("_", "-").replace(".", "-"),
        "repository": IMAGE,
        "tag": IMAGE_TAG,
        "modelURL": OPENED_AS.get(config.model, config.model),
        "replicaCount": number,
        "requestCPU": 4 * config.tensor_parallel_size,
        "requestMemory": f"{max(16, round(config.shape.weight_bytes / 2**30) + 8)}Gi",
        "requestGPU": config.tensor_parallel_size,
        "vllmConfig": {"enablePrefixCaching": True, **known, "extraArgs": extra},
    }
    values = {"servingEngineSpec": {"modelSpec": [model]}, "routerSpec": {"routingLogic": "roundrobin"}}
    note = "# helm install vllm vllm/vllm-stack -f FILE. Weights come from the hub: give hf_token.\n"
    return note + yaml.safe_dump(values, sort_keys=False, width=10_000)


def _engines(plan: Plan) -> list[tuple[str, PlanConfig, int, dict[str, str]]]:
    """(name, config, how many, options of its own) for each kind of engine."""
    config, pools = plan.config, plan.pools
    if pools is None:
        if plan.saturated is None:
            raise ConfigError("no engine can be started for a plan in which no request fits.")
        number = max(1, -int(-config.workload.rate // (CROWDED * plan.saturated.requests_per_s)))
        return [("engines", config, number, {})]
    engines = []
    for name, side in pools.sides.items():
        if side.num_engines is None:
            raise ConfigError("no number of engines keeps this plan's promises.")
        engines.append((name, side.plan.config, side.num_engines, {"kv-transfer-config": NIXL}))
    return engines
