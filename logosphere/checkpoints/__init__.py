"""Published checkpoints: files of weights, families of models, and what their configurations mean."""
