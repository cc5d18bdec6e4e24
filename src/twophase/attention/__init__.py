"""One thin interface to attention; a torch backend and a Triton backend behind it.

Public: `interface` (what a backend is), `select` (one by name), `torch_backend`, `triton_backend`.
"""
