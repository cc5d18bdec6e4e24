"""Stand-ins for vLLM and llama-cpp-python, as packages that another interpreter can import.

Their "model" writes, after each token, that token plus the sequence's length so far (modulo the vocabulary): whoever
mixes up sequences, positions or rows gets other tokens. Both refuse what the real ones would.
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
    def __init__(self, model, dtype, max_num_seqs, max_model_len, block_size, kv_cache_memory_bytes,
                 skip_tokenizer_init, enable_prefix_caching):
        assert skip_tokenizer_init and not enable_prefix_caching
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        with open(os.environ["SEEN"], "a") as seen:
            print(json.dumps([model, dtype, os.environ["OMP_NUM_THREADS"], kv_cache_memory_bytes]), file=seen)
        self.llm_engine = Engine(max_model_len, max_num_seqs)
"""

LLAMA_CPP = """
import ctypes, json, os

GGML_TYPE_F32, GGML_TYPE_F16 = 0, 1

class Options:
    pass

class Batch:
    def __init__(self, room):
        self.n_tokens = 0
        self.token, self.pos, self.n_seq_id, self.logits = ([None] * room for _ in range(4))
        self.seq_id = [[None] for _ in range(room)]

class Context:
    pass

def llama_backend_init(): pass
def llama_model_default_params(): return Options()
def llama_model_load_from_file(path, options): return path.decode()
def llama_model_get_vocab(model): return None
def llama_vocab_n_tokens(vocab): return VOCAB_SIZE
def llama_batch_init(room, embd, n_seq_max): return Batch(room)
def llama_get_memory(context): return context

def llama_context_default_params():
    options = Options()
    options.n_batch = 8  # far less than the prompts, so that they come in pieces
    return options

def llama_init_from_model(model, options):
    with open(os.environ["SEEN"], "a") as seen:
        print(json.dumps([model, options.type_k, options.n_threads, options.n_threads_batch]), file=seen)
    context = Context()
    context.options = options
    return context

def llama_memory_clear(context, data):
    context.sequences = {}

def llama_decode(context, batch):
    options = context.options
    assert 0 < batch.n_tokens <= max(options.n_batch, options.n_seq_max)
    rows = []
    for i in range(batch.n_tokens):
        sequence = context.sequences.setdefault(batch.seq_id[i][0], [])
        assert batch.n_seq_id[i] == 1 and batch.pos[i] == len(sequence)
        sequence.append(batch.token[i])
        if batch.logits[i]:
            best = (sequence[-1] + len(sequence)) % VOCAB_SIZE
            rows += [float(token == best) for token in range(VOCAB_SIZE)]
    assert len(context.sequences) <= options.n_seq_max
    assert all(len(each) * options.n_seq_max <= options.n_ctx for each in context.sequences.values())
    context.logits = (ctypes.c_float * max(len(rows), 1))(*rows)
    return 0

def llama_get_logits(context):
    return ctypes.cast(context.logits, ctypes.POINTER(ctypes.c_float))
"""


def install(folder: Path) -> dict[str, str]:
    """Write both packages; the variables with which an interpreter finds them, and where they tell what they saw."""
    for name, text in {"vllm": VLLM, "llama_cpp": LLAMA_CPP}.items():
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"VOCAB_SIZE = {VOCAB_SIZE}\n{text}")
    (folder / "torch").mkdir()  # the real one takes a second to import
    (folder / "torch" / "__init__.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
    return {"PYTHONPATH": str(folder), "SEEN": str(folder / "seen.jsonl")}


def continuation(prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    """What either writes after a prompt."""
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append((ids[-1] + len(ids)) % VOCAB_SIZE)
    return tuple(ids[len(prompt) :])
