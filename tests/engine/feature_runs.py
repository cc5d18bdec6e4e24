"""Engines with any features on, in one process: what the feature table is executed with."""

import threading
from contextlib import ExitStack, contextmanager
from random import Random
from unittest.mock import patch

import numpy as np

from tests.engine.engines import check_idle
from tests.engine.speculating import Silent
from tests.parallel.thread_peers import ThreadPeers, lines_between
from tests.parallel.two_engines import TwoEngines
from twophase import LLM, SamplingParams, SpeculativeConfig, StructuredOutputs, assembly
from twophase.attention.torch_backend import TorchBackend
from twophase.model.config import load_config
from twophase.model.llama import attention_spec
from twophase_features.parallel import tensor_parallel
from twophase_tools.named_policies import POLICIES

BLOCK_SIZE, LONGEST = 4, 64
COMMON = {
    "device": "cpu",
    "dtype": "float32",  # so that tokens alone and beside others are the same
    "attention_backend": "torch",
    "block_size": BLOCK_SIZE,
    "max_num_seqs": 4,
    "max_model_len": LONGEST,
    "num_kv_blocks": 34,
}
# What an output may depend on, and room for it: the engine that serves each request alone has them too.
SHAPING = (
    "num_kv_blocks",
    "sliding_window",
    "num_attention_sinks",
    "kv_cache_dtype",
    "quantization",
    "skip_tokenizer_init",
)

PARALLEL = {"tensor_parallel", "expert_parallel"}

# Options that switch a feature on, one mapping per way to have it; `examples_of` has those that need the model's folder.
EXAMPLES: dict[str, tuple[dict, ...]] = {
    "prefix_caching": ({"enable_prefix_caching": True},),
    "whole_prompts": ({"enable_chunked_prefill": False},),
    "priority": ({"policy": POLICIES["priority"]()},),
    "chunked": ({"policy": POLICIES["chunked"](max_tokens=9)},),
    "continuous": ({"policy": POLICIES["continuous"]()},),
    "prefill_first": ({"policy": POLICIES["prefill-first"](max_stalled_steps=1)},),
    "static": ({"policy": POLICIES["static"](batch_size=3)},),
    "dynamic": ({"policy": POLICIES["dynamic"](batch_size=3, timeout_s=0)},),
    "deadline": ({"policy": POLICIES["deadline"](max_tokens=9)},),
    "rotating": ({"policy": POLICIES["rotating"](chunk_tokens=3)},),
    "fair": ({"policy": POLICIES["fair"](max_tokens=9)},),
    "swap": ({"preemption_mode": "swap"}, {"preemption_mode": "swap", "num_swap_blocks": 3}),
    "optimistic": ({"admission": "optimistic"},),
    "reserve": ({"admission": "reserve"},),
    "estimate": ({"admission": "estimate"},),
    "watermark": ({"admission_watermark": 0.2},),
    "ngram": ({"speculative_config": SpeculativeConfig(disable_when_losing=False)},),
    "window": ({"sliding_window": 12}, {"sliding_window": 12, "num_attention_sinks": 3}),
    "int8_weights": ({"quantization": "int8"},),
    "int8_dynamic_weights": ({"quantization": "int8_dynamic"},),
    "int8": ({"kv_cache_dtype": "int8"},),
    "fp8": ({"kv_cache_dtype": "fp8_e4m3"},),
    "expert_parallel": ({"enable_expert_parallel": True, "tensor_parallel_size": 2},),
    "tensor_parallel": ({"tensor_parallel_size": 2},),
    "triton": ({"attention_backend": "triton"},),
    "no_tokenizer": ({"skip_tokenizer_init": True},),
}
# Fields of `SamplingParams`, and the prompt's "cache_salt", with which a request uses a feature.
REQUESTS: dict[str, dict] = {
    "salts": {"cache_salt": "a"},
    "several": {"n": 3},
    "stop": {"stop": ("e", "12")},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "guided": {"structured_outputs": StructuredOutputs(regex="[ab]{2,6}")},
}


class RandomDrafter(Silent):
    """Guesses anything, sometimes what came before."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def propose(self, requests):
        return [
            [self.random.choice([*each.token_ids, self.random.randrange(131)]) for _ in range(each.chunk.num_drafts)]
            for each in requests
        ]


def examples_of(name: str, folder) -> tuple[dict, ...]:
    """Options that switch a feature on; none, if a request or the model does."""
    if name == "draft_model":
        config = SpeculativeConfig(
            method="draft_model", model=str(folder), num_speculative_tokens=3, disable_when_losing=False
        )
        return ({"speculative_config": config},)
    if name == "own_drafter":
        return ({"drafter": RandomDrafter(3)},)
    if name == "ready_made":
        return ({"attention_backend": TorchBackend(attention_spec(load_config(folder)), BLOCK_SIZE)},)
    return EXAMPLES.get(name, ({},))


def folder_for(names, folder):
    """The model to run a set of features with: of layers of different kinds, or with experts, if they are about that."""
    if "mixed" in names:
        return folder / "mixed"
    return folder / "sparse" if "expert_parallel" in names else folder


def options_of(rng: Random, names, folder) -> dict:
    options: dict = {"max_num_batched_tokens": LONGEST if "whole_prompts" in names else rng.choice([8, 24])}
    for name in names:
        options |= rng.choice(examples_of(name, folder))
    if "mixed" in names:
        options["num_kv_blocks"] = 60  # three completions, each with blocks in three groups of layers
    return options


def draw_requests(rng: Random, names, count: int = 6) -> list[tuple[dict, SamplingParams]]:
    """Prompts that share beginnings, some of them whole blocks; most of them use the request's features in `names`."""
    document = [Random(5).randint(3, 120) for _ in range(40)]
    requests = []
    for _ in range(count):
        shared = document[: rng.choice([0, 4, 8, 16, 16, 32])]
        own = [rng.randint(3, 120) for _ in range(rng.choice([0, 0, 1, 5]))]
        prompt: dict = {"prompt_token_ids": shared + own or [5]}
        fields: dict = {
            "temperature": rng.choice([0.0, 0.8]),
            "seed": rng.randint(0, 9),
            "max_tokens": rng.randint(1, 14),
        }
        fields["ignore_eos"] = True
        if rng.random() < 0.8:
            for name in names:
                fields |= REQUESTS.get(name, {})
        if "cache_salt" in fields:
            prompt["cache_salt"] = fields.pop("cache_salt") + str(rng.randint(0, 1))
        if "structured_outputs" in fields:
            fields["ignore_eos"] = False
        requests.append((prompt, SamplingParams(**fields)))
    return requests


def results_of(output) -> list[tuple]:
    """What has to be equal: tokens, text, how each completion ended."""
    return [(tuple(each.token_ids), each.text, each.finish_reason, each.error) for each in output.outputs]


def check_prompt_logprobs(output, expected) -> None:
    """Those of the request alone, but for the rounding of other batches."""
    assert (output.prompt_logprobs is None) == (expected.prompt_logprobs is None)
    for one, two in zip(output.prompt_logprobs or (), expected.prompt_logprobs or (), strict=True):
        assert (one is None) == (two is None)
        if one is not None:
            assert (one.token_id, len(one.top)) == (two.token_id, len(two.top))
            numbers = [[each.logprob, *(x for _, x in each.top)] for each in (one, two)]
            np.testing.assert_allclose(*numbers, atol=1e-4)


def check_features(names, seed: int, folder) -> None:
    """A random history with these features on: every request gets what it gets alone, twice, and no block is lost."""
    rng = Random(seed)
    folder, is_slow = folder_for(names, folder), "triton" in names
    options, requests = options_of(rng, names, folder), draw_requests(rng, names, 3 if is_slow else 6)
    expected = each_alone(names, options, folder, requests)
    prompts, params = [prompt for prompt, _ in requests], [each for _, each in requests]
    with (
        patch("twophase_features.speculation.speculator.logger.warning") as complain,
        opened(names, options, folder) as generate,
    ):
        for turn in range(1 if is_slow else 2):
            outputs = generate(prompts, params)
            got, wanted = [*map(results_of, outputs)], [*map(results_of, expected)]
            assert got == wanted, f"seed {seed}, {names}, turn {turn}: {options}\ngot    {got}\nwanted {wanted}"
            for output, one in zip(outputs, expected, strict=True):
                check_prompt_logprobs(output, one)
        assert not complain.called, f"seed {seed}, {names}: {complain.call_args}, {options}"


def each_alone(names, options, folder, requests) -> list:
    """What each request gets when it has an engine to itself, which does nothing but what outputs depend on."""
    shaping = {name: options[name] for name in SHAPING if name in options}
    # Each rank rounds its part of the activations, with a scale of its own: one process does not say the same.
    shares = options.get("quantization") == "int8_dynamic" and PARALLEL & set(names)
    if shares:
        shaping |= {
            name: options[name] for name in ("tensor_parallel_size", "enable_expert_parallel") if name in options
        }
    ranks = ranks_in_threads() if shares else ExitStack()
    with ranks, LLM(folder, **(COMMON | shaping), enable_prefix_caching=False) as alone:
        return [alone.generate(*request, use_tqdm=False)[0] for request in requests]


@contextmanager
def opened(names, options, folder):
    """Yields generate(prompts, params), which also checks that nothing is held afterwards."""
    if "disaggregated" in names:
        pair = TwoEngines(folder, **(COMMON | {"skip_tokenizer_init": False} | options))
        yield pair.generate
        return
    ranks = ranks_in_threads() if PARALLEL & set(names) else ExitStack()
    with ranks, LLM(folder, **(COMMON | options)) as llm:

        def generate(prompts, params):
            outputs = llm.generate(prompts, params, use_tqdm=False)
            check_idle(llm.engine)
            assert llm.scheduler.num_running == llm.scheduler.num_waiting == 0
            return outputs

        yield generate


# -- two ranks of a tensor-parallel model, in two threads


@contextmanager
def ranks_in_threads():
    """LLM(tensor_parallel_size=2) has its second rank in a thread of this process."""
    lines = lines_between(2)
    barrier, turn = threading.Barrier(2, timeout=60), threading.Lock()
    assemble, join = assembly.assemble, tensor_parallel.TensorParallelGroup.join
    here, workers, failures = threading.local(), [], []

    def join_in_threads(config, size, device, timeout_s, has_whole_experts):
        if size == 1:
            return join(config, size, device, timeout_s, has_whole_experts)
        peers = ThreadPeers(getattr(here, "rank", 0), lines, barrier, turn)
        return tensor_parallel.TensorParallelGroup(config, peers, has_whole_experts)

    def serve(model, config):
        here.rank = 1
        try:
            with turn:
                assemble(model, config)
        except SystemExit:
            pass
        except BaseException as error:
            failures.append(error)
            barrier.abort()
            lines[1, 0].put(error)

    def both(model, config):
        if config.tensor_parallel_size > 1:
            workers.append(threading.Thread(target=serve, args=(model, config), daemon=True))
            workers[-1].start()
        return assemble(model, config)

    with ExitStack() as stack:
        stack.enter_context(patch("twophase.llm.assemble", both))
        stack.enter_context(patch.object(tensor_parallel.TensorParallelGroup, "join", join_in_threads))
        stack.enter_context(patch.object(tensor_parallel.signal, "signal", lambda *args: None))
        with turn:
            yield
        for worker in workers:
            worker.join(timeout=60)
    assert not failures, failures
