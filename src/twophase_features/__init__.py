"""What hangs on the engine's doors. The engine (`twophase`) imports none of it; an option or an argument brings it in.

Public: `speculation` (drafts), `structured_outputs` (grammars), `windows` (sliding windows, and layers of different
kinds), `offloading` (blocks that leave the pool), `quantization` (weights of fewer bits), `experts` (mixtures of them),
`gemma3` (what its config.json says), `parallel` (several processes), `cuda_graphs`, `serving` (an engine in a thread,
for an event loop), `model_store` (download and convert), `beam_search`, `selection` (one of several completions),
`chat` (conversations by a model's chat template), `policies` (for schedulers), `pairs` (which features go together),
`worker_process` (functions with a limit on time and memory).
"""
