"""Other engines beside this one: each in a process of its own, under the interpreter of its own environment.

`process` starts one and talks to it; `contender` makes it take part in a benchmark and says what each needs;
`gguf_weights` and `packed_weights` write those forms. `child`, `with_vllm` and `with_llama_cpp` are what runs in the
other process: they import nothing of twophase, which is not installed there.
"""
