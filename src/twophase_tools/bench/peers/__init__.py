"""The engines of `bench engine`: each in a process of its own, under the interpreter of its own environment.

`process` starts one and talks to it; `launches` says what each needs; `gguf_weights` and `packed_weights` write those
forms. `child` and the `with_` files are what runs in the other process; those of other people's engines import nothing
of twophase, which is not installed there.
"""
