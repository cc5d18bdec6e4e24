"""One thin interface to attention, and the torch backend behind it."""
