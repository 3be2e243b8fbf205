"""The text of tokens that become final one after another: what can be sent, and where it ends."""

from collections.abc import Sequence

from logosphere.data.tokenizers import Tokenizer

INCOMPLETE = "\ufffd"
"""Ends the text of tokens that break off within a character."""


class TextCursor:
    """Follows the text after a beginning of known tokens, up to the first end token or stop sequence."""

    def __init__(
        self, tokenizer: Tokenizer, before: Sequence[int], ends: frozenset[int] = frozenset(), stops: Sequence[str] = ()
    ):
        self.tokenizer, self.before, self.ends, self.stops = tokenizer, list(before), ends, tuple(stops)
        self.prefix = tokenizer.decode(self.before) if self.before else ""
        self.text, self.tokens = "", 0
        """The text so far, and its tokens."""
        self.sent = 0
        """Characters of it that were taken by `take`."""
        self.is_stopped = False
        """Whether an end token or a stop sequence has been reached."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Read all final tokens after the beginning."""
        if self.is_stopped:
            return
        end = next((place for place, token in enumerate(tokens) if token in self.ends), None)
        kept = list(tokens if end is None else tokens[:end])
        if end is None and len(kept) == self.tokens:
            return
        text = self._decode(kept)
        found = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        self.is_stopped = end is not None or bool(found)
        self.text, self.tokens = text[: min(found)] if found else text, len(kept)

    def _decode(self, tokens: list[int]) -> str:
        """The text that tokens add to the beginning; tokenizers may join them without a space or with one."""
        whole = self.tokenizer.decode(self.before + tokens)
        return whole[len(self.prefix) :] if whole.startswith(self.prefix) else self.tokenizer.decode(tokens)

    def take(self, *, is_last: bool) -> str:
        """The text that can be sent and was not taken before.

        Until the last time, what may be the beginning of a stop sequence or of a character is kept back.
        """
        end = len(self.text) if is_last or self.is_stopped else self._sendable()
        taken = self.text[self.sent : end]
        self.sent = max(self.sent, end)
        return taken

    def _sendable(self) -> int:
        text = self.text.rstrip(INCOMPLETE)
        held = max((_overlap(text, stop) for stop in self.stops), default=0)
        return len(text) - held


def _overlap(text: str, stop: str) -> int:
    """The longest beginning of a stop sequence that the text ends with."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
