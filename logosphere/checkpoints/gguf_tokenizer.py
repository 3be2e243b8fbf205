"""The tokenizer in a GGUF file as tokenizer.json of the library tokenizers: byte-level BPE of tokens and merges."""

import json
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

from logosphere.errors import UserError, shorten

CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that are found in a text before it is split; control tokens are not part of texts."""
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
PATTERNS = {
    "qwen2": rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_REST}",
    "llama-bpe": rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}",
}
"""How texts are split into words before the merges, by tokenizer.ggml.pre."""
BYTE_LEVEL = ("gpt-2", "smollm")
"""Those that are split as by GPT-2; SmolLM splits digits first. A file without an entry leaves it open."""


def make_tokenizer_json(metadata: Mapping[str, Any]) -> str:
    """The content of tokenizer.json; raises UserError for tokenizers of another kind or with damaged tables."""
    kind, splitting = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or splitting not in [*PATTERNS, *BYTE_LEVEL]:
        raise UserError(
            f"The tokenizer of this GGUF file is of the kind {shorten(kind)} with {shorten(splitting)}; byte-level BPE "
            f"with {', '.join([*BYTE_LEVEL, *PATTERNS])} can be read. Give tokenizer.json beside the file."
        )
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    if not _are_texts(tokens) or not _are_texts(merges) or len(set(tokens)) < len(tokens):
        raise UserError("The tokenizer of this GGUF file lacks its tokens or merges, or has a token twice.")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [merge.split(" ") for merge in merges]
    if any(len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys() for pair in pairs):
        raise UserError("A merge of the tokenizer of this GGUF file is no pair of tokens that make a token.")
    types = metadata.get("tokenizer.ggml.token_type")
    if types is not None and not (isinstance(types, np.ndarray) and len(types) == len(tokens)):
        raise UserError("The tokenizer of this GGUF file must have a type for each token.")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": splitting in BYTE_LEVEL}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(i, token, int(types[i]) == CONTROL)
            for i, token in enumerate(tokens)
            if types is not None and int(types[i]) in (CONTROL, USER_DEFINED)
        ],
        "normalizer": {"type": "NFC"} if splitting == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*_splitters(splitting), level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": pairs, "byte_fallback": False, "ignore_merges": False},
    }
    return json.dumps(content, ensure_ascii=False)


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _added(token_id: int, token: str, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": token, "special": special, **flags}


def _splitters(splitting: str) -> list[dict[str, Any]]:
    """What splits a text before bytes are mapped to characters."""
    if splitting == "smollm":
        return [{"type": "Digits", "individual_digits": True}]
    if splitting in BYTE_LEVEL:
        return []
    return [{"type": "Split", "pattern": {"Regex": PATTERNS[splitting]}, "behavior": "Isolated", "invert": False}]
