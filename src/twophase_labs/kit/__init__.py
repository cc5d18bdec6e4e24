"""What several labs share: models, clocks, kernels in both of Triton's modes, a learner's functions in the engine."""
