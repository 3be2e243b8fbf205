"""What a checkpoint in the DDiT layout means: its process, its mask and what its network reads, which no tensor states.

SUBS, Duo and UDLM, and GIDD predict x̂, the clean token given the other positions: the optimum of a bound in which x̂
stands for x is p(x | z) / q(z | x) up to a constant, so the process adds the likelihood of the own state. SEDD predicts
log ratios, up to log(V (e^σ - 1)).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from logosphere.checkpoints.ddit_tensors import ALPHABET, Sizes
from logosphere.errors import UserError, shorten

LOG_LINEAR = "log-linear"
"""a_t = 1 - (1 - 1e-3) t, the schedule of all these models; σ = -log a_t."""
SPECIAL = {
    50_257: {"bos": 50_256, "eos": 50_256},
    50_258: {"bos": 50_256, "eos": 50_256},
    50_259: {"bos": 50_256, "eos": 50_256},
    30_522: {"bos": 101, "eos": 102, "pad": 0},
}
"""Ids of known vocabularies by their rows: GPT-2, with a mask, with padding too; bert-base-uncased."""
BERT_ROWS, BERT_MASK = 30_522, 103
RDLM_NOISE = 0.03755909399773322
"""∫β of RDLM's geometric schedule from 10⁻³ to 0.2."""


@dataclass(frozen=True)
class Checkpoint:
    """What is known of a checkpoint before its conventions are."""

    config: Mapping[str, Any]
    sizes: Sizes
    length: int
    source: str
    tokenizer_size: int | None

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """An entry of config.json, at its top level or in `model`, of this type."""
        inner = self.config.get("model")
        for part in (self.config, inner if isinstance(inner, Mapping) else {}):
            if (value := part.get(name)) is not None:
                if type(value) is not kind and not (kind is float and type(value) is int):
                    raise UserError(f"config.json has {name}={shorten(value)}, which is no {kind.__name__}.")
                return value
        return default

    @property
    def mask(self) -> int:
        """The row of the mask: as config.json says, that of BERT, or the last row."""
        named = self.get("mask_token_id", int, self.get("mask_index", int))
        if named is None:
            return BERT_MASK if self.sizes.rows == BERT_ROWS else self.sizes.rows - 1
        if not 0 <= named < self.sizes.rows:
            raise UserError(
                f"config.json says that the mask has the id {shorten(named)}, and the table of embeddings has the rows "
                f"0 to {self.sizes.rows - 1}."
            )
        return int(named)

    @property
    def tokens(self) -> int:
        """The number of tokens of a masked model; rows after those of the tokenizer are not used."""
        known = self.sizes.rows if self.tokenizer_size is None else min(self.tokenizer_size, self.sizes.rows)
        return min(known, self.mask) if self.mask >= known - 1 else known


@dataclass(frozen=True)
class Conventions:
    """The conventions of a checkpoint."""

    kind: str
    system: str
    vocab_size: int
    reads: str
    mask_id: int | None = None
    attention: str = "full"
    options: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def mdlm(found: Checkpoint) -> Conventions:
    """SUBS; α_t = 1 - (1 - ε)t, of which the bound does not depend unless the network reads σ."""
    timed = found.get("time_conditioning", bool, False)
    options = {"time_conditional": True, "schedule": LOG_LINEAR, "all_masked": True} if timed else {}
    return Conventions("mdlm", "mdlm", found.tokens, "sigma" if timed else "zero", found.mask, options=options)


def bd3lm(found: Checkpoint) -> Conventions:
    """Masks in blocks; with one block it is masked diffusion."""
    block = found.get("block_size", int)
    if block is None and (named := re.search(r"block[_-]?size-?(\d{1,6})", found.source)):
        block = int(named[1])
    if block is None or block < 1 or found.length % block:
        raise UserError(
            f"config.json of a BD3-LM must have a block_size that divides its length of {found.length}, not "
            f"{shorten(block)}."
        )
    if found.get("time_conditioning", bool, False):
        raise UserError("This BD3-LM is conditioned on the time, and only those that are not can be imported.")
    if not found.get("cross_attn", bool, True):
        raise UserError("This BD3-LM has cross_attn=false; only networks that read [noisy ; clean] can be imported.")
    if block == found.length:
        return Conventions("bd3lm", "mdlm", found.tokens, "zero", found.mask)
    return Conventions("bd3lm", "bd3lm", found.tokens, "zero", found.mask, "blocks", {"block": block})


def uniform(kind: str) -> Callable[[Checkpoint], Conventions]:
    """Uniform noise over all rows of the table; there is no mask."""

    def conventions(found: Checkpoint) -> Conventions:
        timed = found.get("time_conditioning", bool, True) or kind == "duo"
        reads = "sigma" if timed else "zero"
        return Conventions(kind, "udlm", found.sizes.rows, reads, options={"schedule": LOG_LINEAR})

    return conventions


def sedd(found: Checkpoint) -> Conventions:
    """Log ratios, less log(e^σ - 1) + log(V - 1), which is log(e^σ - 1) + log K for K tokens and a mask."""
    graph, noise = (_type_of(found.config, part) for part in ("graph", "noise"))
    if graph not in (None, "absorb") or noise not in (None, "loglinear"):
        raise UserError(
            f"This SEDD has graph.type={graph} and noise.type={noise}; only absorb with loglinear can be imported."
        )
    if not found.get("scale_by_sigma", bool, True):
        raise UserError("This SEDD has scale_by_sigma=false; only scores that are scaled by σ can be imported.")
    mask = found.sizes.rows - 1
    options = {"schedule": LOG_LINEAR, "all_masked": True}
    return Conventions("sedd", "sedd-absorb", mask, "sigma", mask, options=options)


def _type_of(config: Mapping[str, Any], part: str) -> str | None:
    """`graph.type`, nested or as one key."""
    inner = config.get(part)
    value = inner.get("type") if isinstance(inner, Mapping) else config.get(f"{part}.type")
    return None if value is None else str(value)


def gidd(found: Checkpoint) -> Conventions:
    """Masks and random tokens, the padding among them: B = 2 p_u/(1 - p_u), uniform over the V - 1 other rows."""
    p_u = found.get("p_uniform", float)
    if p_u is None and (named := re.search(r"p_unif-?(\d\.\d{1,6})", found.source)):
        p_u = float(named[1])
    if p_u is None or not 0 <= p_u < 1:
        raise UserError(f"config.json of a GIDD must have p_uniform, at least 0 and below 1, not {shorten(p_u)}.")
    mask = found.mask
    if mask != found.sizes.rows - 1:
        raise UserError(f"The mask of a GIDD is the last row, {found.sizes.rows - 1}, and not {mask}.")
    return Conventions("gidd", "gidd", mask, "time", mask, options={"p_u": float(p_u), "schedule": "linear"})


def ar(found: Checkpoint) -> Conventions:
    """A causal network without modulation; the row of the mask is there and not used."""
    remark = (
        "The network was trained to continue texts: the first token is predicted after the end-of-text token, which is "
        "assumed to come before it."
    )
    return Conventions("ar", "ar", found.tokens, "nothing", found.mask, "causal", remarks=(remark,))


def rdlm(found: Checkpoint) -> Conventions:
    """RDLM's protocol: the step mixture of paths, whose value is a surrogate."""
    n = found.sizes.rows
    text8 = n == ALPHABET
    options: dict[str, Any] = {
        "input": "state",
        "posterior_head": False,
        "loss": "importance-weighted",
        "protocol": "published",
        "window": [0.3, 0.6] if text8 else [0.3, 0.75],
        "total_noise": RDLM_NOISE,
        "start": "step:0.35" if text8 else "step:0.38",
        "transitions": "published",
        "time_sampler": "geometric",
    }
    remark = "The value of the published path, a mixture that switches its start, is a surrogate and not a bound."
    if text8:
        order = "The letters a … z and the space are read in the order of the package, the space first."
        return Conventions("rdlm", "rdlm", n, "time", options=options, remarks=(remark, order))
    tokens = found.tokenizer_size or BERT_ROWS
    options |= {"base": n, "codes": "published", "rho_scale": 1.14}
    return Conventions("rdlm", "rdlm", tokens, "time", options=options, remarks=(remark,))


KINDS: dict[str, Callable[[Checkpoint], Conventions]] = {
    "mdlm": mdlm,
    "bd3lm": bd3lm,
    "udlm": uniform("udlm"),
    "duo": uniform("duo"),
    "sedd": sedd,
    "gidd": gidd,
    "ar": ar,
    "rdlm": rdlm,
}
MODEL_TYPES = {"mdlm": "mdlm", "bd3lm": "bd3lm", "udlm": "udlm", "duo": "duo", "sedd": "sedd", "dit": "gidd"} | {
    "gidd": "gidd",
    "rdlm": "rdlm",
}
"""Kinds by the model_type of config.json."""
ASSUMED = (
    "config.json names no model_type, so the checkpoint is taken for an MDLM: masked diffusion whose mask is the last "
    "row."
)


def find_kind(config: Mapping[str, Any], sizes: Sizes, source: str, has_cache: bool) -> tuple[str, tuple[str, ...]]:
    """The kind of a checkpoint, by its tensors where they decide, else by its name and configuration; and a remark."""
    if sizes.reads_states:
        return "rdlm", ()
    if not sizes.modulated:
        return "ar", ()
    name = source.rpartition("/")[2].lower()
    model_type = str(config.get("model_type") or "").lower()
    if _type_of(config, "graph") is not None or (model_type == "mdlm" and name.startswith("sedd")):
        return "sedd", ()
    if model_type in MODEL_TYPES:
        return MODEL_TYPES[model_type], ()
    if model_type:
        raise UserError(
            f"The tensors have the DDiT layout, and the model_type '{shorten(model_type)}' of config.json is not "
            f"known; known are {', '.join(MODEL_TYPES)}."
        )
    named = config.get("architectures")
    classes = " ".join(map(str, named)).lower() if isinstance(named, list) else ""
    for kind in ("bd3lm", "udlm", "duo", "sedd", "gidd", "mdlm"):
        if kind in classes or name.startswith(kind):
            return kind, ()
    if has_cache or "p_uniform" in config:
        return "gidd", ()
    return "mdlm", (ASSUMED,)
