"""One thin interface to attention, and the torch backend behind it.

Public: `interface` (the door), `torch_backend`.
"""
