"""llama.cpp under the clock, by its own functions: the binding's high-level class serves one request after another.

Imported by `child` in llama-cpp-python's environment. Requests run together: each step's batch has a token of every
request that writes, and of the prompts as much as there is room for.
"""

import time
from importlib import import_module
from typing import Any

llama: Any = import_module("llama_cpp")
numpy: Any = import_module("numpy")

PACKAGES = ("llama-cpp-python",)


class Engine:
    """A loaded model and a context with a stream of K/V for each request."""

    def __init__(self, settings: dict[str, Any]) -> None:
        llama.llama_backend_init()
        options = llama.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model = llama.llama_model_load_from_file(settings["model"].encode(), options)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {settings['model']}")
        options = llama.llama_context_default_params()
        options.n_seq_max = options.n_outputs_max = settings["num_requests"]
        options.n_ctx = settings["num_requests"] * settings["longest"]
        options.n_threads = options.n_threads_batch = settings["num_threads"]
        options.type_k = options.type_v = getattr(llama, f"GGML_TYPE_{settings['kv_type']}")
        options.kv_unified = False
        self._context = llama.llama_init_from_model(self._model, options)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self._vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        self._room = max(options.n_batch, settings["num_requests"])
        self._batch = llama.llama_batch_init(self._room, 0, 1)

    def run(self, prompts: list[list[int]], output_lens: list[int]) -> tuple[list[float], list[list[int]]]:
        """When each request's first token was there, and its tokens."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        num_read = [0] * len(prompts)
        first_token_s = [0.0] * len(prompts)
        tokens: list[list[int]] = [[] for _ in prompts]
        while any(len(of_one) < most for of_one, most in zip(tokens, output_lens)):  # noqa: B905  (Python 3.9)
            written = self._step(prompts, num_read, tokens, output_lens)
            now_s = time.perf_counter()
            for index, token in written:
                if not tokens[index]:
                    first_token_s[index] = now_s
                tokens[index].append(token)
        return first_token_s, tokens

    def _step(
        self, prompts: list[list[int]], num_read: list[int], tokens: list[list[int]], output_lens: list[int]
    ) -> list[tuple[int, int]]:
        """Pass one batch through the model; the requests that got a token by it, with that token."""
        self._batch.n_tokens = 0
        writing = [i for i, of_one in enumerate(tokens) if of_one and len(of_one) < output_lens[i]]
        for index in writing:
            self._add(index, tokens[index][-1], len(prompts[index]) + len(tokens[index]) - 1, True)
        for index, prompt in enumerate(prompts):
            end = min(len(prompt), num_read[index] + self._room - self._batch.n_tokens)
            for position in range(num_read[index], end):
                self._add(index, prompt[position], position, position == len(prompt) - 1)
            if num_read[index] < end == len(prompt):
                writing.append(index)
            num_read[index] = end
        if error := llama.llama_decode(self._context, self._batch):
            raise RuntimeError(f"llama_decode returned {error}")
        logits = llama.llama_get_logits(self._context)  # a row for each token that asked for it, in their order
        best = numpy.ctypeslib.as_array(logits, shape=(len(writing), self._vocab_size)).argmax(axis=1)
        return list(zip(writing, best.tolist()))  # noqa: B905  (Python 3.9)

    def _add(self, sequence: int, token: int, position: int, wants_logits: bool) -> None:
        batch, i = self._batch, self._batch.n_tokens
        batch.token[i] = token
        batch.pos[i] = position
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = sequence
        batch.logits[i] = wants_logits
        batch.n_tokens = i + 1
