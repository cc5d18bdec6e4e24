"""One thin interface to attention (`interface`, the door), and the torch backend behind it (`torch_backend`)."""
