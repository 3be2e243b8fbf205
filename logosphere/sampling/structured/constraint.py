"""Constraints on sampled texts: a regular expression or a JSON schema for a model, for `sample(…, constraint=…)`."""

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from logosphere.codecs.base import Autoencoder
from logosphere.codecs.tokens import DigitCodec
from logosphere.errors import UserError, check_count, shorten
from logosphere.model import Model
from logosphere.sampling.structured.json_schema import MAX_BYTES, parse_schema
from logosphere.sampling.structured.pattern import Characters, Pattern, Repetition, join
from logosphere.sampling.structured.pieces import Pieces, read_pieces
from logosphere.sampling.structured.product import RestrictedProduct
from logosphere.sampling.structured.regex import parse_regex
from logosphere.sampling.structured.token_automaton import TokenAutomaton, build_token_automaton
from logosphere.types import Batch, Bool, Int64
from logosphere.untrusted import read_regular

KEPT = 32
"""Automata that are kept for further calls."""
_kept: OrderedDict[tuple[object, ...], TokenAutomaton] = OrderedDict()
_lock = Lock()


@dataclass(frozen=True, eq=False)
class Constraint:
    """A language of token sequences at the positions from `start` to `stop`."""

    automaton: TokenAutomaton
    description: str
    """What the language is, for errors."""
    start: int = 0
    stop: int | None = None
    """The end of the text; by default that of the sequence."""
    end: int | None = None
    """The token that fills the sequence after the text, where there is one."""

    def stop_within(self, length: int) -> int:
        """Where the text ends in a sequence of this length."""
        stop = length if self.stop is None else self.stop
        if not self.start < stop <= length:
            raise UserError(
                f"The text of {self.description} is at the positions from {self.start} to {stop}, which do not lie "
                f"within the {length} positions that are sampled; choose another length."
            )
        return stop

    def fill_end(self, model: Model, batch: Batch) -> Batch:
        """The batch with the tokens after the text known, where the model can be conditioned on them."""
        if self.end is None or self.stop is None or self.stop >= batch.tokens.shape[1]:
            return batch
        known, tokens = batch.known.clone(), batch.tokens.clone()
        known[:, self.stop :], tokens[:, self.stop :] = True, self.end
        return Batch.of(tokens, known) if model.can_see(known) else batch

    def check(self, batch: Batch, length: int) -> None:
        """Raise UserError if no text of this length agrees with the known tokens."""
        stop = self.stop_within(length)
        product = self.open_product(batch.known[:, self.start : stop], batch.tokens[:, self.start : stop])
        if not len(batch) or bool((product.log_z > -torch.inf).all()):
            return
        shortest, found = _shortest(self.automaton), stop - self.start
        if shortest is None:
            raise UserError(
                f"{self.description} cannot be spelled with the tokens of this model; use characters that it has."
            )
        around = " that agrees with the known tokens" if bool(batch.known.any()) else ""
        raise UserError(
            f"{self.description} matches no text of {found} tokens{around}; its shortest text has {shortest}. "
            "Choose another length or pattern."
        )

    def open_product(self, known: Bool[Tensor, "B T"], tokens: Int64[Tensor, "B T"]) -> RestrictedProduct:
        """The language with nothing predicted: which texts are left by known tokens."""
        automaton = self.automaton.to(tokens.device)
        return RestrictedProduct(
            automaton,
            torch.zeros_like(known),
            torch.zeros(0, len(automaton.token_class), device=tokens.device),
            tokens,
            ~known,
            torch.zeros(len(tokens), dtype=torch.long, device=tokens.device),
            automaton.accepting.expand(len(tokens), -1),
        )


def constrain(
    model: Model,
    *,
    match: str | None = None,
    json_schema: Mapping[str, Any] | str | Path | None = None,
    length: int | None = None,
    start: int = 0,
) -> Constraint:
    """The constraint that texts of a model match a regular expression, or are JSON of a schema.

    `match` is a regular expression of Python, which the whole text matches (`re.fullmatch`). `json_schema` is a schema
    as a dictionary, as JSON text, or the path of a file. The text begins at the position `start`, after a prompt for
    example, and has `length` tokens from there; by default it ends with the sequence, or earlier for a model whose
    texts end: after the end there are only further ends. JSON is followed by spaces where texts do not end.
    """
    if (match is None) == (json_schema is None):
        raise UserError("Give either match (a regular expression) or json_schema (a schema), not both or none of them.")
    _check_model(model)
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise UserError("This model has no tokenizer, so its tokens spell no text; set model.tokenizer first.")
    if length is not None:
        check_count("length", length)
    first = model.denoiser is not None and not model.denoiser.answers_first
    start = max(start, int(first))  # position 0 then holds the token that begins a text
    end = model.special_token("eos") if tokenizer.eos is None else tokenizer.eos
    stop = None if length is None else start + length
    exact = stop is not None  # no end before it, and the length is that of the text
    source = match if match is not None else _schema_text(json_schema)
    key = (match is None, source, json.dumps(tokenizer.describe(), sort_keys=True), model.vocab_size, end, exact)
    subject = f"The regular expression {shorten(match)}" if match is not None else "The JSON schema"
    with _lock:
        found = _kept.get(key)
    if found is None:
        pieces = read_pieces(tokenizer, end, model.vocab_size)
        found = _build(source, subject, pieces, schema=match is None, exact=exact)
        with _lock:
            _kept[key] = found
            while len(_kept) > KEPT:
                _kept.popitem(last=False)
    return Constraint(found, subject, start, stop, end)


def _build(source: str, subject: str, pieces: Pieces, *, schema: bool, exact: bool) -> TokenAutomaton:
    pattern: Pattern = parse_schema(source) if schema else parse_regex(source)
    if schema and (pieces.end is None or exact):
        pattern = join(pattern, Repetition(Characters(((32, 32),))))  # JSON may be followed by spaces
    if exact and pieces.end is not None:
        pieces = replace(pieces, end=None)
    return build_token_automaton(pattern, pieces, subject)


def _schema_text(schema: Mapping[str, Any] | str | Path | None) -> str:
    """The text of a schema, by which its automaton is found again."""
    if isinstance(schema, Path):
        try:
            content = read_regular(schema)
            if len(content) > MAX_BYTES:
                raise UserError(f"{schema} has {len(content):,} bytes, and the limit of a schema is {MAX_BYTES:,}.")
            return content.decode()
        except (OSError, ValueError) as error:
            raise UserError(f"{schema} cannot be read as a JSON schema ({error}).") from None
    if isinstance(schema, str):
        return schema
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"The schema is not JSON ({error}).") from None


def _check_model(model: Model) -> None:
    """Raise UserError for a model that does not predict tokens."""
    codec = model.process.codec
    if isinstance(codec, Autoencoder):
        if not codec.decodes_in_parallel:
            raise UserError(
                "This model decodes its latents from left to right, each token given those before, so its texts cannot "
                "be matched with a regular expression or a schema; use tencdm or cosmos."
            )
        return
    if not model.process.predicts_tokens:
        raise UserError(
            "This model predicts states and not tokens, so its texts cannot be matched with a regular expression or a "
            "schema; use a system that predicts tokens, such as mdlm."
        )
    if codec.num_classes != model.vocab_size and not isinstance(codec, DigitCodec):
        raise UserError("This model predicts parts of tokens, so its texts cannot be matched; use another system.")


def _shortest(automaton: TokenAutomaton) -> int | None:
    """The tokens of the shortest text, ends included; None if there is no text."""
    following = [row[row < automaton.states].unique().tolist() for row in automaton.next[:-1].cpu()]
    accepting = automaton.accepting.tolist()
    level, seen, count = {0}, {0}, 0
    while level:
        if any(accepting[state] for state in level):
            return count
        level = {target for state in level for target in following[state]} - seen
        seen |= level
        count += 1
    return None
