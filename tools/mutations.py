"""Mutations of valid inputs: of bytes, of numbers, of words in a list, and of values in JSON that stays JSON."""

import json
import random
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 1 << 16
"""Largest input."""

NUMBERS = [b"0", b"-1", b"1", b"2", b"3.5", b"1e9", b"-1e999", b"NaN", b"null", b"true", b"[]", b"{}", b'""', b"1" * 30]
VALUES: list[Any] = [
    0,
    -1,
    1,
    7,
    2**31,
    2**63,
    10**30,
    0.5,
    -0.0,
    1e300,
    float("nan"),
    None,
    True,
    "",
    "x",
    "\ud800",
    [],
    [[]],
    {},
    {"": 0},
]
BYTES = [b"\x00", b"\xff" * 8, bytes(8), (1 << 40).to_bytes(8, "little"), b"\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"\n"]


@dataclass
class Mutator:
    """Mutates inputs; `words` are inserted as they are."""

    chance: random.Random
    words: list[bytes]
    separator: bytes = b""
    """Separator of words, for targets whose input is a list of words."""

    def __call__(self, content: bytes, others: list[bytes]) -> bytes:
        for _ in range(self.chance.choice((1, 1, 1, 2, 4))):
            mutate = self.chance.choice((self._mutate_bytes, self._mutate_bytes, self._mutate_json, self._mutate_words))
            content = mutate(content, others)
        return content[:MAX_BYTES]

    def _mutate_words(self, content: bytes, others: list[bytes]) -> bytes:
        """Insert, remove or replace a word."""
        if not self.separator:
            return self._mutate_bytes(content, others)
        words = content.split(self.separator)
        place = self.chance.randrange(len(words) + 1)
        new = [self.chance.choice([*self.words, *NUMBERS, *self.chance.choice(others).split(self.separator)])]
        return self.separator.join(
            words[:place] + new * self.chance.choice((0, 1, 1)) + words[place + self.chance.randrange(2) :]
        )

    def _mutate_json(self, content: bytes, others: list[bytes]) -> bytes:
        """Replace, remove or copy a value of a JSON document."""
        start = 1 if content[:1] < b" " else 0
        try:
            whole = json.loads(content[start:])
        except (ValueError, RecursionError):
            whole = None
        if not whole or not isinstance(whole, dict | list):
            return self._mutate_bytes(content, others)
        inner: list[Any] = [whole]
        for value in inner:
            inner += [
                part
                for part in (value.values() if isinstance(value, dict) else value)
                if part and isinstance(part, dict | list)
            ]
        holder = self.chance.choice(inner)
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key, other = self.chance.choice(keys), self.chance.choice(keys)
        kind = self.chance.randrange(4)
        if kind == 0:
            holder.pop(key)
        elif kind == 1:
            holder[key] = holder[other]
        else:
            holder[key] = self.chance.choice(VALUES)
        return content[:start] + json.dumps(whole).encode()

    def _mutate_bytes(self, content: bytes, others: list[bytes]) -> bytes:
        chance = self.chance
        start = chance.randrange(len(content) + 1)
        end = min(len(content), start + chance.choice((1, 1, 2, 4, 8, 40)))
        kind = chance.randrange(9)
        if kind == 0 and content:
            flipped = bytearray(content)
            flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            return bytes(flipped)
        if kind == 1:
            return content[:start]
        if kind == 2:
            return content[:start] + content[end:]
        if kind == 3:
            return content[:end] + content[start:]  # repeats a part
        if kind == 4:
            return content[:start] + chance.choice(self.words + BYTES) + content[start:]
        if kind == 5:
            return content[:start] + chance.choice(self.words + BYTES) + content[end:]
        if kind == 6:
            other = chance.choice(others)
            place = chance.randrange(len(other) + 1)
            return content[:start] + other[place:]
        if kind == 7:
            return self._replace_number(content)
        return content[:start] + bytes([chance.randrange(256)]) + content[end:]

    def _replace_number(self, content: bytes) -> bytes:
        """Replace a number by another one or by something else."""
        digits = [place for place, byte in enumerate(content) if 48 <= byte <= 57]
        if not digits:
            return content
        start = self.chance.choice(digits)
        end = start
        while end < len(content) and 48 <= content[end] <= 57:
            end += 1
        return content[:start] + self.chance.choice(NUMBERS) + content[end:]
