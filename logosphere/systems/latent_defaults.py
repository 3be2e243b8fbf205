"""Options of latent systems on text that depend on what is installed and on the tokenizer: the pretrained encoder.

They are resolved once, where a model is made for a tokenizer, and stored with the model: its recipe names the encoder,
the hash of its weights and the word piece of each token, so that it is the same model on every machine.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from logosphere.autoencoders.pretrained import (
    INSTALL,
    UNKNOWN,
    check_sha256,
    encoder_tokenizer,
    load_encoder,
    minilm_is_installed,
    read_vocabulary,
)
from logosphere.errors import UserError

DEFAULT_ENCODER = "minilm"
SCRATCH = "scratch"
"""The value of the option `encoder` with which an encoder is trained."""
VOCABULARY = 2048
"""Word pieces of the tokenizer that is made for a corpus, unless a size is given."""
NAMED = ("minilm", "mpnet")
"""Encoders in packages, which have a tokenizer of the same name."""
HUB = "hf:"
PROSE = ("e2e", "captions", "tinystories", "passages")
"""Named corpora of English, for which the tokenizer `auto` is that of the encoder."""
WIDE: dict[str, Any] = {"compression": 8, "latent_width": None, "local_skip": True}
"""Latents of texts unless given: one as wide as a pretrained state for 8 tokens, as in COSMOS (docs/latents.md)."""
SCRATCH_WIDTH = 256
"""Their width where the encoder is trained, 32 features for a token."""


class Completed(NamedTuple):
    """Options with those that were resolved, and a remark about them for the user."""

    options: dict[str, Any]
    remark: str


def wants_encoder(options: Mapping[str, Any], *, default: bool) -> str | None:
    """The name of the encoder that these options ask for; None for one that is trained.

    `default` is whether the system has a pretrained encoder where none is named and the package is installed.
    """
    if "encoder" in options:
        named = options["encoder"]
        return None if named in (None, SCRATCH) else str(named)
    return DEFAULT_ENCODER if default and minilm_is_installed() else None


def complete_encoder(
    options: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    *,
    layer: int,
    default: bool,
    compressed: bool,
    published: bool,
) -> Completed:
    """Options with the encoder, its hash and the word piece of each token of a tokenizer, given by its description.

    An encoder that was not named is left out where the tokens are not word pieces of it. Latents are those of `WIDE`,
    except in `published` systems.
    """
    name = wants_encoder(options, default=default)
    wide = {key: value for key, value in WIDE.items() if key != "compression" or "latents" not in options}
    wide = wide if compressed and not published else {}
    if name is None:
        scratch = wide | ({"latent_width": SCRATCH_WIDTH} if wide else {}) | dict(options)
        if "encoder" not in options and default:
            return _from_scratch(scratch, f"{DEFAULT_ENCODER} is not installed: {INSTALL}")
        return Completed(scratch, "")
    found: dict[str, Any] = {"encoder": name}
    if not name.startswith(HUB) and options.get("encoder_token_ids") is None:
        try:
            ids = match_pieces(tokenizer, read_vocabulary(encoder_tokenizer(name)), load_encoder(name, 0).eos)
        except UserError:
            if "encoder" in options:
                raise
            scratch = wide | ({"latent_width": SCRATCH_WIDTH} if wide else {}) | dict(options)
            return _from_scratch(scratch, f"{name} needs its own word pieces, --tokenizer {name}:{VOCABULARY}")
        found["encoder_token_ids"] = ids
    encoder = load_encoder(name, layer)
    check_sha256(encoder, options.get("encoder_sha256"))
    if encoder.sha256:
        found["encoder_sha256"] = encoder.sha256
    sha256 = f", sha256 {encoder.sha256[:12]}…" if encoder.sha256 else ""
    remark = f"the encoder is {name} ({encoder.vocab_size:,} word pieces, {encoder.width} features{sha256}), frozen"
    given = {key: value for key, value in options.items() if value is not None or key not in found}
    return Completed(wide | found | given, remark)


def _from_scratch(options: Mapping[str, Any], reason: str) -> Completed:
    return Completed(dict(options) | {"encoder": SCRATCH}, f"the encoder is trained from scratch; {reason}")


def match_pieces(tokenizer: Mapping[str, Any], vocabulary: Mapping[str, int], eos: int) -> list[int]:
    """The encoder's word piece of each token.

    A token that ends texts is the encoder's own end.
    """
    ended = tokenizer.get("kind") == "ended"
    described = tokenizer["inner"] if ended else tokenizer
    pieces = _pieces_of(described)
    missing = [piece for piece in pieces if piece not in vocabulary]
    if not pieces or missing:
        what = f"the token {missing[0]!r}, which is no word piece of it" if missing else "no word pieces"
        raise UserError(
            f"The tokenizer has {what}; use --tokenizer {DEFAULT_ENCODER}:{VOCABULARY}, or --options encoder={SCRATCH} "
            "to train an encoder."
        )
    return [vocabulary[piece] for piece in pieces] + ([eos] if ended else [])


def _pieces_of(described: Mapping[str, Any]) -> list[str]:
    """The word pieces of a tokenizer in the order of their numbers; empty for other tokenizers and for gaps."""
    if described.get("kind") != "subwords":
        return []
    model = json.loads(described["json"]).get("model", {})
    if model.get("type") != "WordPiece" or model.get("unk_token") != UNKNOWN:
        return []
    by_number = {number: piece for piece, number in model["vocab"].items()}
    numbers = range(len(by_number))
    return [by_number[number] for number in numbers] if by_number.keys() == set(numbers) else []
