"""Rows to sample: the known positions, the seed and the end of each text that a request asks for."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from logosphere.checkpoints.chat import render_chat
from logosphere.data.tokenizers import encode_infill
from logosphere.errors import UserError
from logosphere.runs.chat import GEN_LENGTH, SPECIAL
from logosphere.sampling.decoding import DecodingConfig
from logosphere.sampling.layout import arrange
from logosphere.sampling.published import end_tokens, turn_end_tokens
from logosphere.sampling.registry import choose_sampler, sampler_info
from logosphere.sampling.structured.constraint import Constraint
from logosphere.serving.errors import APIError
from logosphere.serving.formats import TextFormat, make_constraint
from logosphere.serving.models import ServedModel
from logosphere.serving.protocol import CompletionRequest, GenerationSettings

_LAST_GAP = re.compile(r"\[((?P<dots>\.+)|(?P<count>[0-9]{1,6}))\]$")
GAP_TOKENS = 16
"""Tokens between a prompt and a suffix unless `max_tokens` is given, as in OpenAI's API."""


@dataclass(frozen=True)
class BatchKey:
    """What rows must have in common to be sampled together."""

    model: str
    settings: GenerationSettings
    decoding: DecodingConfig
    prefix: int | None
    """Tokens of the prompt, where the sampler's blocks begin after it."""
    renoised: bool
    """Whether the network sees known positions as noisy as the rest."""
    text_format: TextFormat | None = None
    span: tuple[int, int] | None = None
    """The positions that have the format."""


@dataclass(eq=False)
class Row:
    """A text to sample."""

    key: BatchKey
    known: Tensor
    tokens: Tensor
    start: int
    """Where the text of the answer begins."""
    stop: int
    """Where it ends at the latest."""
    seed: int
    number: int
    """The number of this text among those of its seed."""
    index: int = 0
    """The number of this text in the answer to its request."""
    ends: frozenset[int] = frozenset()
    """Tokens that end the text."""
    text_until: int = 0
    """Positions before which no end token may be drawn, because known text follows."""
    stops: tuple[str, ...] = ()
    biases: tuple[tuple[int, float], ...] = ()
    streams: bool = False
    drafts: bool = False
    prompt_tokens: int = 0
    prompt: str = ""
    """The prompt, where it is to be repeated."""
    constraint: Constraint | None = None
    """What keeps the format; the same for rows with equal keys."""
    is_cancelled: bool = field(default=False)
    """Set when its client has gone."""


@dataclass(frozen=True)
class _Given:
    """Known positions and the part of them that is the answer."""

    known: Tensor
    tokens: Tensor
    start: int
    stop: int
    end: int
    """The end of what must be sampled: also the suffix."""


def make_rows(request: CompletionRequest, served: ServedModel) -> list[Row]:
    """The rows of a request; raises APIError for what the model cannot do."""
    prompts: Sequence[str | Sequence[int]] = request.prompts
    if request.kind == "chat":
        prompts = (_render(request, served),)
    model, seed = served.model, secrets.randbits(62) if request.seed is None else request.seed
    ends = {*end_tokens(model), *(turn_end_tokens(model) if request.kind == "chat" else ())}
    _check_biases(request, served)
    rows = list[Row]()
    try:
        for number, prompt in enumerate(prompts):
            given = _place_infill(request.infill, served) if request.infill else _place(prompt, request, served)
            key = _find_key(request.settings, served, given)
            constraint = None
            if request.text_format is not None:
                span = given.start, given.stop
                constraint = make_constraint(request.text_format, model, given.known, given.tokens, *span)
                key = replace(key, text_format=request.text_format, span=span)
            fills = bool(given.known[given.start :].any()) or bool(request.infill)
            for choice in range(request.n):
                rows.append(
                    Row(
                        key, given.known, given.tokens, given.start, given.stop,
                        seed, choice, number * request.n + choice,
                        ends=frozenset() if fills else frozenset(ends),
                        text_until=given.end if fills else 0,
                        stops=request.stop, biases=request.logit_bias, streams=request.stream, drafts=request.draft,
                        prompt_tokens=int(given.known.sum()),
                        prompt=_as_text(prompt, served) if request.echo else "", constraint=constraint,
                    )
                )  # fmt: skip
    except UserError as problem:
        raise APIError(str(problem)) from None
    return rows


def _as_text(prompt: str | Sequence[int], served: ServedModel) -> str:
    return prompt if isinstance(prompt, str) else served.tokenizer.decode(list(prompt))


def _render(request: CompletionRequest, served: ServedModel) -> str:
    """The conversation as the text that the model was trained on."""
    template, model = served.chat_template, served.model
    if template is None:
        raise APIError(
            f"The model {served.name!r} has no chat template, which imported instruct models have; "
            "use /v1/completions to continue a text.",
            param="model",
            code="no_chat_template",
        )
    ids = {name: token for name in SPECIAL if (token := model.special_token(name)) is not None}
    texts = {name: served.tokenizer.decode([token]) for name, token in ids.items()}
    try:
        return render_chat(template, request.messages, texts)
    except UserError as problem:
        raise APIError(str(problem), param="messages") from None


def _encode(text: str | Sequence[int], served: ServedModel, name: str) -> list[int]:
    if isinstance(text, str):
        try:
            return [int(token) for token in served.tokenizer.encode(text)]
        except UserError as problem:
            raise APIError(str(problem), param=name) from None
    if any(not 0 <= token < served.model.vocab_size for token in text):
        raise APIError(f"Tokens of {name} must be from 0 to {served.model.vocab_size - 1}.", param=name)
    return list(text)


def _place(prompt: str | Sequence[int], request: CompletionRequest, served: ServedModel) -> _Given:
    """A prompt at the beginning, and perhaps a suffix after a gap."""
    model, length = served.model, served.model.length
    before, after = _encode(prompt, served, "prompt"), _encode(request.suffix, served, "suffix")
    if not before and model.denoiser is not None and not model.denoiser.answers_first:
        if (first := model.special_token("bos")) is None:
            raise APIError("This model cannot begin a text; give a prompt.", param="prompt")
        before = [first]
    room = length - len(before) - len(after)
    wanted = request.max_tokens
    if wanted is None:
        usual = GAP_TOKENS if after else GEN_LENGTH if served.generates_parts else room
        wanted = max(1, min(usual, room))
    if wanted > room:
        given = f"{len(before)} in the prompt" + (f" and {len(after)} in the suffix" if after else "")
        raise APIError(
            f"Sequences of this model have {length} tokens. {given}, and {wanted} to generate, are "
            f"{len(before) + len(after) + wanted}; shorten the prompt or ask for fewer tokens.",
            param="max_tokens" if room > 0 and request.max_tokens is not None else "prompt",
            code="context_length_exceeded",
        )
    known, tokens = torch.zeros(length, dtype=torch.bool), torch.zeros(length, dtype=torch.long)
    stop = len(before) + wanted
    for start, ids in ((0, before), (stop, after)):
        known[start : start + len(ids)], tokens[start : start + len(ids)] = True, torch.tensor(ids, dtype=torch.long)
    model.check_known(known)
    return _Given(known, tokens, len(before), stop, stop + len(after))


def _place_infill(text: str, served: ServedModel) -> _Given:
    """A text with gaps such as [....] or [12]; the answer is the whole text."""
    try:
        given = encode_infill(text, served.tokenizer, served.model.length)
    except UserError as problem:
        raise APIError(str(problem), param="infill") from None
    served.model.check_known(given.known)
    places = given.known.nonzero()
    end = int(places[-1]) + 1 if len(places) else 0
    stop = end + _trailing_gap(text)
    if bool(given.known[:stop].all()):
        raise APIError("infill has no gap; write one as [....] or [12].", param="infill")
    return _Given(given.known, given.tokens, 0, stop, end)


def _trailing_gap(text: str) -> int:
    """The tokens of the gaps at the end of a text."""
    size = 0
    while found := _LAST_GAP.search(text):
        size += int(found["count"] or len(found["dots"]))
        text = text[: found.start()]
    return size


def _check_biases(request: CompletionRequest, served: ServedModel) -> None:
    process = served.model.process
    if not request.logit_bias:
        return
    if not process.predicts_tokens or process.codec.num_classes != served.model.vocab_size:
        raise APIError("This model does not predict tokens, so logit_bias does not apply.", param="logit_bias")
    if (largest := request.logit_bias[-1][0]) >= served.model.vocab_size:
        most = served.model.vocab_size - 1
        raise APIError(f"logit_bias names token {largest}, but tokens are from 0 to {most}.", param="logit_bias")


def _find_key(settings: GenerationSettings, served: ServedModel, given: _Given) -> BatchKey:
    """The settings with the defaults of the model, checked against it."""
    model = served.model
    if settings.sampler is not None:
        try:
            sampler_info(settings.sampler)
        except UserError as problem:
            raise APIError(str(problem), param="sampler") from None
    name = settings.sampler or (served.sampler if settings.block_length is None else "auto")
    filtered = settings.temperature not in (None, 1.0) or settings.top_p != 1
    if filtered and not model.process.predicts_tokens:
        raise APIError("This model predicts states, not tokens, so temperature and top_p do not apply.")
    temperature = served.temperature if settings.temperature is None else settings.temperature
    prefix = int(given.known.long().cumprod(0).sum())
    decoding = DecodingConfig()
    if served.generates_parts or settings.block_length is not None:
        length, block = given.end - prefix, settings.block_length
        if block is not None:
            length = min(-(-length // block) * block, (model.length - prefix) // block * block)
        decoding = DecodingConfig(gen_length=max(1, length), block_length=block)
        decoding.check()
    sampler = choose_sampler(model, name, decoding, prefix)
    arrange(model, prefix, decoding, sampler)
    blockwise = bool(decoding.given()) or sampler.block_length is not None
    return BatchKey(
        served.name,
        replace(settings, sampler=name, temperature=temperature),
        decoding,
        prefix if blockwise else None,
        served.renoises and bool(given.known.any()),
    )
