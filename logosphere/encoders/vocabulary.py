"""A part of an encoder's vocabulary: a corpus of few words needs few of its pieces, and a head over all is slow."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from logosphere.errors import UserError

UNKNOWN = "[UNK]"


class Part(NamedTuple):
    """A tokenizer of some of the pieces, and the number that each of them has in the whole."""

    tokenizer: str
    """tokenizer.json, for `Subwords.from_json`."""
    pieces: list[int]


def part_of(tokenizer: Path, texts: Iterable[str], size: int) -> Part:
    """The `size` word pieces of a tokenizer.json that are commonest in `texts`, which should be those of training.

    Single characters come first, so that words that were not seen can still be spelt.
    """
    from tokenizers import Tokenizer

    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    if content.get("model", {}).get("type") != "WordPiece":
        raise UserError(f"{tokenizer} holds no word pieces; a part can only be made of a WordPiece vocabulary.")
    whole = Tokenizer.from_file(str(tokenizer))
    whole.no_truncation()
    whole.no_padding()
    seen = Counter(piece for text in texts for piece in whole.encode(text, add_special_tokens=False).tokens)
    letters = {character for piece in seen for character in piece.removeprefix("##")}
    vocabulary: dict[str, int] = content["model"]["vocab"]
    spelt = [piece for letter in sorted(letters) for piece in (letter, f"##{letter}") if piece in vocabulary]
    common = [piece for piece, _ in seen.most_common()]
    kept = list(dict.fromkeys([UNKNOWN, *spelt, *common]))[:size]
    if size < 1 + len(spelt):
        raise UserError(f"These texts have {len(spelt)} single characters to spell; choose a size above that.")
    content["model"]["vocab"] = {piece: number for number, piece in enumerate(kept)}
    content |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return Part(json.dumps(content, ensure_ascii=False), [vocabulary[piece] for piece in kept])
