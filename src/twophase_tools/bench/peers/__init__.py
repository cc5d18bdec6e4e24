"""The engines of `bench engine`: each in a process of its own, under the interpreter of its own environment.

`process` starts one and talks to it; `launches` says what each needs. `child` and the `with_` files run in the other
process; `with_vllm` imports nothing of twophase, which is not installed there.
"""
