"""Readers: tokens to the states that are compressed, or diffused as they are. Each feature has mean 0 and variance 1.

A reader that learns could answer noise by larger states; that its scale is fixed, before any noise, keeps it from it.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from logosphere.autoencoders.standard import Standard
from logosphere.cache import cache_folder
from logosphere.codecs.tokens import embedding
from logosphere.encoders.pretrained import Encoder
from logosphere.encoders.states import States, cached_states
from logosphere.errors import UserError
from logosphere.networks.backbone import Backbone
from logosphere.networks.config import NetworkConfig
from logosphere.shapes import Float
from logosphere.types import Tokens


class Reader(nn.Module, ABC):
    """Tokens to states [B, L, `width`]."""

    width: int

    @abstractmethod
    def forward(self, tokens: Tokens) -> Float[Tensor, "B L D"]: ...

    def study(self, tokens: Tokens) -> Float[Tensor, "B L D"]:
        """The same, while the autoencoder is being taught: what is seen may be noted until `settle`."""
        return self(tokens)

    def precompute(self, rows: Callable[[], Tokens], corpus: str) -> None:  # noqa: B027 (as below)
        """Get ready to read these rows of a corpus many times."""

    def accumulators(self) -> list[Tensor]:
        """Sums of the observations of a training step."""
        return []

    def update_statistics(self) -> None:  # noqa: B027 (a reader that learns by gradients has nothing to settle)
        """Take what was seen into account."""


class Learned(Reader):
    """A small transformer, trained with the rest of stage one."""

    def __init__(self, vocab_size: int, length: int, network: NetworkConfig):
        super().__init__()
        self.width = network.width
        self.stem = embedding(vocab_size, network.width)
        self.trunk = Backbone(network, length, reads_time=False)

    def forward(self, tokens: Tokens) -> Float[Tensor, "B L D"]:
        return F.layer_norm(self.trunk(self.stem(tokens)), (self.width,))


class Frozen(Reader):
    """A pretrained encoder; `pieces[k]` is the encoder's own number of token k.

    Without `pieces` the vocabulary is the encoder's, and one token more is the end that fills up short texts.
    """

    pieces: Tensor

    def __init__(self, encoder: Encoder, vocab_size: int, length: int, pieces: list[int] | None):
        super().__init__()
        if pieces is None and vocab_size - encoder.vocab_size not in (0, 1):
            raise UserError(
                f"The encoder {encoder.name} reads its own {encoder.vocab_size:,} word pieces, but the vocabulary has "
                f"{vocab_size:,} tokens; use its tokenizer, or name the piece of each token with encoder_token_ids=…."
            )
        own = list(range(encoder.vocab_size)) + [encoder.end] * (vocab_size - encoder.vocab_size)
        table = torch.tensor(own if pieces is None else pieces)
        if len(table) != vocab_size or int(table.min()) < 0 or int(table.max()) >= encoder.vocab_size:
            raise UserError(
                f"encoder_token_ids must name one of the {encoder.vocab_size:,} word pieces of {encoder.name} "
                f"for each of the {vocab_size:,} tokens."
            )
        if length > encoder.longest:
            raise UserError(f"The encoder {encoder.name} reads at most {encoder.longest} tokens at once, not {length}.")
        self.width = encoder.width
        self.standard = Standard(1, encoder.width)
        self.register_buffer("pieces", table, persistent=False)
        self._encoder = [encoder]  # in a list: its weights belong to its package, not to every checkpoint
        self._states: States | None = None

    @property
    def encoder(self) -> Encoder:
        return self._encoder[0]

    def spelt(self, tokens: Tensor) -> Tensor:
        """Tokens as the encoder's word pieces."""
        return self.pieces[tokens]

    def precompute(self, rows: Callable[[], Tokens], corpus: str) -> None:
        """Have the encoder read every row once, unless it has; from then on its states are looked up."""
        encoder, every = self.encoder, rows().numpy()
        spelling = hashlib.sha256(self.pieces.cpu().numpy().tobytes()).hexdigest()[:12]
        text = f"{spelling}-{corpus}"  # the same text in other pieces is another text to the encoder
        name = re.sub(r"[^a-z0-9]+", "-", f"{encoder.name}-{encoder.layer}-{every.shape[1]}-{text}".lower())
        self.remember(cached_states(encoder, every, self.spelt, cache_folder() / "states" / name[:120], text))

    def remember(self, states: States) -> None:
        """Look rows up here before asking the encoder; their statistics are those of the whole training split."""
        self._states = states
        self.standard.know(states.mean, states.deviation)

    def forward(self, tokens: Tokens) -> Float[Tensor, "B L D"]:
        return self.standard(self._known(tokens))

    def study(self, tokens: Tokens) -> Float[Tensor, "B L D"]:
        states = self._known(tokens)
        if self._states is None:
            self.standard.observe(states)
        return self.standard(states)

    def _known(self, tokens: Tokens) -> Float[Tensor, "B L D"]:
        if self._states is None:
            return self.encoder.states(self.spelt(tokens))
        states, found = self._states.look_up(tokens)
        if not bool(found.all()):
            states[~found] = self.encoder.states(self.spelt(tokens[~found]))
        return states

    def accumulators(self) -> list[Tensor]:
        return [self.standard.pending]

    def update_statistics(self) -> None:
        self.standard.update_statistics()
