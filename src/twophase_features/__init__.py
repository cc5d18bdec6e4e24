"""Features behind the engine's doors. The engine (`twophase`) imports no feature; an option or an argument loads it.

Public: `speculation` (drafts), `structured_outputs` (grammars), `windows` (sliding windows, and layers of different
    kinds), `offloading` (second-level storage of K/V blocks), `quantization` (weights of fewer bits), `experts`
    (mixtures of experts), `gemma3` (its config.json), `parallel` (several processes), `cuda_graphs`, `serving` (an
    engine in a thread, for an event loop), `model_store` (download and convert), `beam_search`, `selection` (one of
    several completions), `logprobs` (log-probabilities of drawn tokens and of prompts), `score_edits` (biases,
    penalties, masks), `truncation` (top-k, top-p, min-p), `stop_strings`, `chat` (conversations by a model's chat
    template), `policies` and `admission` (for schedulers), `step_memory` (kept free on a GPU), `rope_scaling`,
    `added_tokens`, `pairs` (which features go together), `worker_process` (functions with a limit on time and memory).
"""
