"""Lab 6: weights and activations in fewer bits."""
