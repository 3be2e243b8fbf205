"""The size of a published network, and the conventions of its checkpoint that no tensor states."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from logosphere.errors import UserError, shorten

LAYOUTS = ("ddit", "llama", "gpt2")
READS = ("nothing", "zero", "sigma", "time")
"""What a network is told about the noise: nothing; σ = 0 at every time; σ = -log a_t; or the time t itself."""
ATTENTION = ("full", "causal", "blocks")
LARGEST = 1 << 24


@dataclass(frozen=True)
class PublishedConfig:
    """A network in a published layout. Sizes come from the tensors, the rest from config.json or the model's name."""

    layout: str
    """ddit, llama or gpt2."""
    rows: int
    """Rows of the embedding table, V; ids of the checkpoint are 0 … V - 1, the mask among them."""
    width: int
    depth: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    """Width of the feed-forward layers."""
    positions: int
    """Positions that the network was trained with, at most."""
    mask_id: int | None = None
    """The row of the mask; None for uniform noise, for autoregressive models, and where it is no row of the table."""
    mask_vector: bool = False
    """The mask has a vector of its own, not a row of the table: in networks adapted from autoregressive ones."""
    shift: bool = False
    """The output at position i - 1 answers position i, as in models that began as autoregressive ones; position 0 has
    no answer of its own, so it must be given."""
    reads: str = "nothing"
    attention: str = "full"
    reads_states: bool = False
    """Whether the input is a state of the sphere instead of token ids (RDLM)."""
    rotary_base: float = 10_000.0
    eps: float = 1e-5
    tied: bool = False
    """The head is the embedding table."""
    qkv_bias: bool = False
    qk_norm: bool = False
    modulated: bool = True
    """Layer norms are modulated by the condition (adaLN of DDiT)."""
    condition_width: int = 128
    """Width of the embedded σ or t of DDiT."""
    permutation: tuple[int, ...] = ()
    """Row of the checkpoint for each token, where its alphabet is in another order; empty: the same order."""
    anneal: float = 0.0
    """Fraction of a training in which the attention of a network that was causal opens; 0: it is open at once."""

    def __post_init__(self) -> None:
        for name, choices in (("layout", LAYOUTS), ("reads", READS), ("attention", ATTENTION)):
            if getattr(self, name) not in choices:
                raise UserError(f"{name} must be one of {', '.join(choices)}, not {shorten(getattr(self, name))}.")
        for name in ("rows", "width", "depth", "heads", "kv_heads", "head_width", "inner", "positions"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= LARGEST:
                raise UserError(f"{name} must be a number from 1 to {LARGEST:,}, not {shorten(value)}.")
        if self.heads % self.kv_heads:
            raise UserError(f"{self.heads} heads cannot share {self.kv_heads} heads of keys and values evenly.")
        if self.mask_id is not None and not 0 <= self.mask_id < self.rows:
            raise UserError(f"mask_id must be a row of the table, from 0 to {self.rows - 1}, not {self.mask_id}.")
        if not isinstance(self.anneal, int | float) or not 0 <= self.anneal <= 1:
            raise UserError(f"anneal must be a fraction of the training, from 0 to 1, not {shorten(self.anneal)}.")

    @property
    def mask_input(self) -> int | None:
        """The id that the network reads for a mask: a row of the table, or the one after the last."""
        return self.rows if self.mask_vector else self.mask_id

    def to_dict(self) -> dict[str, Any]:
        """For recipe.json."""
        return asdict(self) | {"permutation": list(self.permutation)}

    @staticmethod
    def from_dict(content: Any) -> "PublishedConfig":
        """From recipe.json, which may be a stranger's."""
        kinds = {field.name: field.type for field in fields(PublishedConfig)}
        if not isinstance(content, dict) or (unknown := sorted(set(content) - set(kinds))):
            what = f"an unknown entry '{unknown[0]}'" if isinstance(content, dict) else f"{shorten(content)}"
            raise UserError(f"The description of the published network has {what}; restore recipe.json from a copy.")
        try:
            return PublishedConfig(**content | {"permutation": tuple(content.get("permutation", ()))})
        except TypeError as problem:
            raise UserError(f"The description of the published network is incomplete ({problem}).") from None
