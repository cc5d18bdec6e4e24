"""A model: its folder on disk, its weights and its forward pass."""
