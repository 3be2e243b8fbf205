"""Settings of the decoding loops of published models, by the names that their users know.

Each option belongs to some samplers, but for the length, the blocks, guidance without the prompt and caches, which
serve every sampler of masked diffusion.
"""

from dataclasses import dataclass, fields, replace
from typing import Literal

from logosphere.errors import UserError, check_count, check_number, shorten

Cache = Literal["none", "prefix", "dual"]
Remasking = Literal["low_confidence", "random", "low_confidence_dynamic", "low_confidence_static", "sequential"]
Algorithm = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]

CHOICES: dict[str, tuple[str, ...]] = {
    "cache": ("none", "prefix", "dual"),
    "remasking": ("low_confidence", "random", "low_confidence_dynamic", "low_confidence_static", "sequential"),
    "alg": ("origin", "maskgit_plus", "topk_margin", "entropy"),
}
OF_SDAR = ("low_confidence_dynamic", "low_confidence_static", "sequential")

OWNERS_OF_LLADA = ("llada", "llada-greedy", "fast-dllm")
OWNERS_OF_SDAR = ("sdar",)
SPECIFIC: dict[str, tuple[str, ...]] = {
    "remasking": (*OWNERS_OF_LLADA, *OWNERS_OF_SDAR),
    "logits_eos_inf": OWNERS_OF_LLADA,
    "confidence_eos_eot_inf": OWNERS_OF_LLADA,
    "alg": ("dream",),
    "alg_temp": ("dream",),
    "eps": ("dream",),
    "threshold": ("fast-dllm", "fast-dllm-v2", "sdar"),
    "denoising_steps": ("sdar",),
    "small_block_size": ("fast-dllm-v2",),
}
"""The samplers that an option belongs to."""


@dataclass(frozen=True)
class DecodingConfig:
    """Options of decoding as published for LLaDA, Dream, SDAR and Fast-dLLM."""

    gen_length: int | None = None
    """Tokens to generate after the prompt; without it the whole length of the model."""
    block_length: int | None = None
    """Tokens of a block; blocks are decoded from left to right."""
    cfg_scale: float = 0.0
    """Guidance by the prompt: logits l' + (cfg_scale + 1) (l - l'), where l' does not see the prompt. Two evaluations
    a step."""
    remasking: Remasking | None = None
    """Which tokens stay masked. low_confidence or random: llada, fast-dllm. low_confidence_dynamic,
    low_confidence_static or sequential: sdar."""
    logits_eos_inf: bool = False
    """Never draw the token that ends a text (llada)."""
    confidence_eos_eot_inf: bool = False
    """Commit tokens that end a text or a turn last (llada)."""
    alg: Algorithm | None = None
    """Algorithm of dream: origin, maskgit_plus, topk_margin or entropy; entropy unless set."""
    alg_temp: float | None = None
    """Temperature of the order of positions (dream)."""
    eps: float | None = None
    """Time at which the steps of dream end; 0.001 unless set."""
    threshold: float | None = None
    """Commit all tokens of this probability; 0.9 unless set (fast-dllm, fast-dllm-v2, sdar)."""
    denoising_steps: int | None = None
    """Steps for a block at most; as many as it has tokens unless set (sdar)."""
    small_block_size: int | None = None
    """Tokens of a part of a block; parts are decoded from left to right; 8 unless set (fast-dllm-v2)."""
    cache: Cache = "none"
    """Keep keys and values while a block is decoded, an approximation for networks that see both directions: prefix
    keeps those before the block, dual also those after it. Caches of models with blocks are exact."""
    cache_refresh: int = 0
    """Compute all keys and values again every so many steps; 0 for once in each block."""

    def given(self) -> dict[str, object]:
        """Options that are set."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}

    def check(self) -> None:
        """Raise UserError for values that are not allowed."""
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise UserError(f"{name} must be one of {', '.join(choices)}, not {shorten(value)}.")
        for name in ("gen_length", "block_length", "denoising_steps", "small_block_size"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name in ("cfg_scale", "alg_temp", "eps", "threshold"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        if type(self.cache_refresh) is not int or self.cache_refresh < 0:
            raise UserError(
                f"cache_refresh must be a number of steps of at least 0, not {shorten(self.cache_refresh)}."
            )
        if self.cache_refresh and self.cache == "none":
            raise UserError("cache_refresh needs a cache: add cache=prefix or cache=dual.")
        if not 0 <= self.cfg_scale < float("inf"):
            raise UserError(f"cfg_scale must be finite and at least 0, not {self.cfg_scale}.")
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise UserError(f"threshold is a probability above 0 and at most 1, not {self.threshold}.")
        if self.alg_temp is not None and not 0 <= self.alg_temp < float("inf"):
            raise UserError(f"alg_temp must be finite and at least 0, not {self.alg_temp}.")
        if self.eps is not None and not 0 < self.eps < 1:
            raise UserError(f"eps must be a time above 0 and below 1, not {self.eps}.")
        if self.gen_length is not None and self.block_length is not None and self.gen_length % self.block_length:
            raise UserError(
                f"block_length={self.block_length} does not divide gen_length={self.gen_length}; choose one that does."
            )

    def check_general(self) -> None:
        """Raise UserError for options of certain samplers, where the sampler is an object."""
        if specific := [name for name in self.given() if name in SPECIFIC]:
            raise UserError(
                f"{specific[0]} belongs to the sampler {' and '.join(owners_of(specific[0], self))}; choose it by name."
            )


SYNONYMS = {
    "low-confidence": "llada",
    "fast-dllm-v1": "fast-dllm",
    "low-confidence-dynamic": "sdar",
    "block-diffusion": "sdar",
}
"""Other names of samplers; - and _ are the same."""
ALGORITHMS: dict[str, Algorithm] = {
    "maskgit-plus": "maskgit_plus",
    "topk-margin": "topk_margin",
    "origin": "origin",
}
"""Samplers that are algorithms of dream."""


def owners_of(option: str, config: DecodingConfig) -> tuple[str, ...]:
    """The samplers that an option with its value belongs to."""
    if option == "remasking":
        return OWNERS_OF_SDAR if config.remasking in OF_SDAR else OWNERS_OF_LLADA
    return SPECIFIC[option]


def resolve_name(name: str, config: DecodingConfig) -> tuple[str, DecodingConfig]:
    """The registered sampler and its options, for a name that users of other packages know."""
    plain = name.replace("_", "-")
    if plain not in ALGORITHMS:
        return SYNONYMS.get(plain, plain), config
    alg = ALGORITHMS[plain]
    if config.alg not in (None, alg):
        raise UserError(f"The sampler {name} is alg={alg}, not alg={config.alg}; leave out one of the two.")
    return "dream", replace(config, alg=alg)


def find_owner(name: str, config: DecodingConfig) -> str:
    """The sampler that the options belong to, for 'auto'; an error if they do not belong to the one named."""
    found = name
    for option in config.given():
        if option not in SPECIFIC:
            continue
        owners = owners_of(option, config)
        if found == "auto":
            found = owners[0]
        elif found not in owners:
            raise UserError(
                f"{option} belongs to the sampler {' and '.join(owners)}, not to {found}; leave out one of the two."
            )
    return found
