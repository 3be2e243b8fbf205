"""Limits of the server: sizes of requests, of the queue and of batches, and times."""

from dataclasses import dataclass

MAX_BYTES = 1 << 20
"""Bytes of a request, at most."""
MAX_CHARACTERS = 200_000
"""Characters of a prompt, at most."""
MAX_CHOICES = 16
"""Texts of a request (prompts times n), at most."""
MAX_STEPS = 1024
MAX_STOPS, MAX_STOP_CHARACTERS = 4, 200
"""Stop sequences of a request, and characters of each."""
MAX_BIASES = 1024
"""Tokens in `logit_bias`."""
MAX_MESSAGES = 256
MAX_FORMATS = 2
"""Formats of texts that are prepared at a time."""
BATCH_NUMBERS = 1 << 27
"""Predictions of a batch (rows × positions × vocabulary), at most: 512 MiB of float32."""


@dataclass(frozen=True)
class ServeLimits:
    """Limits that the operator sets; times are in seconds."""

    queue: int = 256
    """Texts that wait; a request beyond them is refused with 429."""
    batch: int = 32
    """Texts that are sampled together."""
    linger_seconds: float = 0.01
    """Wait before a batch, so that requests that arrive together are sampled together."""
    request_seconds: float = 600.0
    """Time that a request may take, in the queue and in work."""
    shutdown_seconds: float = 5.0
    """Time for requests in work when the server is stopped; then they are cancelled."""

    def count_rows(self, length: int, vocab_size: int) -> int:
        """How many texts of a model fit into a batch."""
        return max(1, min(self.batch, BATCH_NUMBERS // (length * vocab_size)))
