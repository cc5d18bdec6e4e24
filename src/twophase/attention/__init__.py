"""One thin interface to attention; a torch backend and a Triton backend behind it."""
