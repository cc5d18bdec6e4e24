"""One thin interface to attention; a torch backend and a Triton backend behind it.

Public: `interface` (the door), `select` (one by name), `torch_backend`, `triton_backend`.
"""
