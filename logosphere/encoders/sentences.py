"""A frozen encoder's view of whole texts: one vector each, to sort or compare them by."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from logosphere.encoders.pretrained import Encoder
from logosphere.types import Float

Spell = Callable[[str], list[int]]
"""A text as the encoder's own word pieces."""


def word_pieces(tokenizer: str) -> Spell:
    """Spelling by a tokenizer.json, without marks of beginning or end."""
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(tokenizer)
    words.no_padding()
    words.no_truncation()
    return lambda text: words.encode(text, add_special_tokens=False).ids


def embeddings(encoder: Encoder, spell: Spell, texts: Sequence[str]) -> Float[Tensor, "N D"]:
    """The mean of a text's states, of length 1 (Reimers and Gurevych 2019); zero for a text without words.

    Texts of one length go through the encoder together, so that nothing has to be filled up.
    """
    spelt = [spell(text)[: encoder.longest] for text in texts]
    alike: defaultdict[int, list[int]] = defaultdict(list)
    for place, pieces in enumerate(spelt):
        alike[len(pieces)].append(place)
    found = torch.zeros(len(texts), encoder.width)
    for length, places in alike.items():
        if length:
            states = encoder.states(torch.tensor([spelt[place] for place in places]))
            found[places] = torch.nn.functional.normalize(states.mean(1), dim=-1)
    return found
