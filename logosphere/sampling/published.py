"""The decoding loops of published models as steppers, from the options that their users know (docs/samplers.md)."""

from collections.abc import Callable
from dataclasses import replace

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.sampling.decoding import DecodingConfig
from logosphere.sampling.sampler import Configure, Sampler
from logosphere.sampling.steppers.decoding import (
    CommitAbove,
    ConfidenceDecoding,
    commit_block_share,
    commit_by_time,
    commit_evenly,
    commit_independently,
)

THRESHOLD = 0.9
SDAR_BLOCK, FAST_BLOCK, SMALL_BLOCK = 4, 32, 8
DREAM_EPS = 1e-3
MOST_ENDS = 8
"""Ends of a text that a checkpoint may name."""
TURN_ENDS = ("<|eot_id|>", "<|im_end|>")
"""Tokens that end a turn of a conversation (LLaDA; Dream and Qwen)."""
DREAM_CONFIDENCES = {"origin": "random", "maskgit_plus": "probability", "topk_margin": "margin", "entropy": "entropy"}


def decode_llada(model: Model, config: DecodingConfig, prefix: int) -> ConfidenceDecoding:
    """masks // steps of the likeliest tokens, or of any (Nie et al. 2025)."""
    return ConfidenceDecoding(
        commit_evenly,
        "random" if config.remasking == "random" else "probability",
        excluded=end_tokens(model) if config.logits_eos_inf else (),
        delayed=(*end_tokens(model), *turn_end_tokens(model)) if config.confidence_eos_eot_inf else (),
    )


def decode_dream(model: Model, config: DecodingConfig, prefix: int) -> ConfidenceDecoding:
    """floor(masks (1 - s/t)) by one of four algorithms (Ye et al. 2025)."""
    alg = config.alg or "entropy"
    return ConfidenceDecoding(
        commit_independently if alg == "origin" else commit_by_time,
        DREAM_CONFIDENCES[alg],
        tempered=True,
        order_temperature=0.0 if alg == "origin" else config.alg_temp or 0.0,
        top_p_first=True,
        end=DREAM_EPS if config.eps is None else config.eps,
    )


def decode_sdar(model: Model, config: DecodingConfig, prefix: int) -> ConfidenceDecoding:
    """All tokens above the threshold, and at least block // steps, in each block (Cheng et al. 2025)."""
    block = config.block_length or default_block(model, prefix, config, SDAR_BLOCK)
    dynamic = config.remasking in (None, "low_confidence_dynamic")
    return ConfidenceDecoding(
        CommitAbove(_threshold(config), scheduled=True, strict=True) if dynamic else commit_block_share,
        "order" if config.remasking == "sequential" else "probability",
        tempered=True,
        block=block,
        block_steps=config.denoising_steps or block,
    )


def decode_fast_dllm(model: Model, config: DecodingConfig, prefix: int) -> ConfidenceDecoding:
    """All tokens from the threshold on, and at least the likeliest (Wu et al. 2025)."""
    block = config.block_length or default_block(model, prefix, config, FAST_BLOCK)
    llada = decode_llada(model, config, prefix)
    return ConfidenceDecoding(
        CommitAbove(_threshold(config)), llada.confidence, excluded=llada.excluded, delayed=llada.delayed, block=block
    )


def decode_fast_dllm_v2(model: Model, config: DecodingConfig, prefix: int) -> ConfidenceDecoding:
    """As Fast-dLLM, one part of a block after another."""
    block = config.block_length or default_block(model, prefix, config, FAST_BLOCK)
    published = None if model.spec is None else model.spec.published
    return ConfidenceDecoding(
        CommitAbove(_threshold(config), strict=True),
        tempered=True,
        origin=prefix if model.block == model.length else 0,
        block=block,
        part=config.small_block_size or SMALL_BLOCK,
        first_alone=published is not None and bool(published.get("shift")),
    )


def default_block(model: Model, prefix: int, config: DecodingConfig, usual: int) -> int:
    """The usual length of a block, or the largest below it that divides what is generated."""
    if model.block < model.length:
        return model.block
    generated = model.length - prefix if config.gen_length is None else config.gen_length
    return next(size for size in range(min(usual, max(1, generated)), 0, -1) if generated % size == 0)


def start_token(model: Model) -> int | None:
    """The token before the first of a text, where a published model was trained with one in every text."""
    checkpoint = None if model.spec is None else model.spec.checkpoint
    return model.special_token("bos") if checkpoint is not None and checkpoint.get("starts_with_bos") is True else None


def end_tokens(model: Model) -> tuple[int, ...]:
    """The tokens that end a text: of a published checkpoint those it names, else that of the tokenizer, if it has one.

    Checkpoints with several name them eos, eos_2 and so on.
    """
    named = [model.special_token(name) for name in ("eos", *(f"eos_{n}" for n in range(2, MOST_ENDS + 1)))]
    own = None if model.tokenizer is None else model.tokenizer.eos
    return tuple(dict.fromkeys(token for token in (*named, own) if token is not None))


def turn_end_tokens(model: Model) -> tuple[int, ...]:
    """Tokens that end a turn: that of a published checkpoint, and those that the tokenizer has as single tokens."""
    found = [model.special_token("eot"), *(_find_single(model, text) for text in TURN_ENDS)]
    return tuple(dict.fromkeys(token for token in found if token is not None))


def _find_single(model: Model, text: str) -> int | None:
    """The token whose text this is, if the tokenizer has one."""
    if model.tokenizer is None:
        return None
    try:
        ids = [int(token) for token in model.tokenizer.encode(text)]
    except UserError:  # an alphabet without these signs
        return None
    return ids[0] if len(ids) == 1 and model.tokenizer.decode(ids) == text else None


def _threshold(config: DecodingConfig) -> float:
    return THRESHOLD if config.threshold is None else config.threshold


def as_configure(
    decode: Callable[[Model, DecodingConfig, int], ConfidenceDecoding], *, greedy: bool = False
) -> Configure:
    """A published decoding loop as a sampler."""

    def configure(model: Model, config: DecodingConfig, prefix: int) -> Sampler:
        stepper = decode(model, config, prefix)
        return Sampler(replace(stepper, greedy=greedy), block_length=stepper.block or None)

    return configure
