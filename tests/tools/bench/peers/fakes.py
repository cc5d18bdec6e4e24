"""A stand-in for vLLM, as a package that another interpreter can import.

Its "model" writes, after each token, that token plus the sequence's length so far (modulo the vocabulary): whoever
mixes up sequences or positions gets other tokens. It refuses what the real one would.
"""

from pathlib import Path

VOCAB_SIZE = 1000

VLLM = """
import json, os

class RequestOutputKind:
    DELTA = "delta"

class sampling_params:
    RequestOutputKind = RequestOutputKind

class SamplingParams:
    def __init__(self, temperature, max_tokens, ignore_eos, detokenize, output_kind):
        assert temperature == 0.0 and ignore_eos and not detokenize and output_kind == "delta"
        self.max_tokens = max_tokens

class Output:
    def __init__(self, request_id, token_ids):
        self.request_id = request_id
        self.outputs = [self]
        self.token_ids = token_ids

class Engine:
    def __init__(self, longest, max_num_seqs):
        self.longest, self.max_num_seqs, self.requests = longest, max_num_seqs, {}

    def add_request(self, request_id, prompt, params):
        assert isinstance(request_id, str)
        ids = list(prompt["prompt_token_ids"])
        assert len(ids) + params.max_tokens <= self.longest
        self.requests[request_id] = (ids, params.max_tokens)
        assert len(self.requests) <= self.max_num_seqs

    def has_unfinished_requests(self):
        return bool(self.requests)

    def step(self):
        outputs = []
        for request_id, (ids, left) in reversed(self.requests.items()):
            ids.append((ids[-1] + len(ids)) % VOCAB_SIZE)
            outputs.append(Output(request_id, [ids[-1]]))
            self.requests[request_id] = (ids, left - 1)
        self.requests = {name: entry for name, entry in self.requests.items() if entry[1]}
        return outputs

class LLM:
    def __init__(self, model, dtype, max_num_seqs, max_model_len, max_num_batched_tokens, block_size, kv_cache_memory_bytes,
                 skip_tokenizer_init, enable_prefix_caching):
        assert skip_tokenizer_init and not enable_prefix_caching
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        with open(os.environ["SEEN"], "a") as seen:
            print(json.dumps([model, dtype, os.environ["OMP_NUM_THREADS"], kv_cache_memory_bytes]), file=seen)
        self.llm_engine = Engine(max_model_len, max_num_seqs)
"""


def install(folder: Path) -> dict[str, str]:
    """Write the package; the variables with which an interpreter finds it, and where it tells what it saw."""
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_text(f"VOCAB_SIZE = {VOCAB_SIZE}\n{VLLM}")
    (folder / "torch").mkdir()  # the real one takes a second to import
    (folder / "torch" / "__init__.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
    return {"PYTHONPATH": str(folder), "SEEN": str(folder / "seen.jsonl")}


def continuation(prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    """What it writes after a prompt."""
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append((ids[-1] + len(ids)) % VOCAB_SIZE)
    return tuple(ids[len(prompt) :])
