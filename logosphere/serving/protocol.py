"""Requests of OpenAI's API for completions and chats, checked and limited in size, and extensions of this server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from logosphere.serving.errors import APIError
from logosphere.serving.fields import Fields, check_text, refuse
from logosphere.serving.formats import FIELD, TextFormat, parse_format
from logosphere.serving.limits import (
    MAX_BIASES,
    MAX_CHARACTERS,
    MAX_CHOICES,
    MAX_MESSAGES,
    MAX_STEPS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
)

MAX_TOKENS = 1 << 20
"""The largest `max_tokens`; how many there can be is up to the model."""
SHARED = {
    "model", "n", "stream", "stream_options", "stop", "seed", "temperature", "top_p", "logit_bias", "max_tokens",
    "presence_penalty", "frequency_penalty", "logprobs", "response_format",
    "steps", "sampler", "block_length", "draft",
}  # fmt: skip
IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
"""Fields that do not change the text."""
COMPLETION = frozenset(SHARED | IGNORED | {"prompt", "suffix", "echo", "best_of", "infill"})
CHAT = frozenset(
    SHARED | IGNORED
    | {"messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "functions",
       "function_call", "modalities", "audio", "prediction", "reasoning_effort", "verbosity", "web_search_options"}
)  # fmt: skip
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

Message = Mapping[str, str]


@dataclass(frozen=True)
class GenerationSettings:
    """How texts are sampled. Texts with equal settings are sampled together."""

    steps: int = 64
    sampler: str | None = None
    """None for the default of the model."""
    block_length: int | None = None
    temperature: float | None = None
    """None for the default of the model; 0 takes the likeliest token."""
    top_p: float = 1.0


@dataclass(frozen=True)
class CompletionRequest:
    """A request for texts: after a prompt, between a prompt and a suffix, in the gaps of a text, or in a chat."""

    kind: Literal["text", "chat"]
    model: str
    prompts: tuple[str | tuple[int, ...], ...] = ("",)
    """Texts, or token numbers."""
    suffix: str = ""
    infill: str = ""
    messages: tuple[Message, ...] = ()
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    echo: bool = False
    stream: bool = False
    include_usage: bool = False
    draft: bool = False
    text_format: TextFormat | None = None
    settings: GenerationSettings = GenerationSettings()


def parse_completion(content: Mapping[str, Any]) -> CompletionRequest:
    """Check a request to /v1/completions."""
    fields = Fields(content, COMPLETION)
    _check_unsupported(fields)
    n = fields.whole("n", 1, 1, MAX_CHOICES)
    if "best_of" in fields and fields.whole("best_of", 1, 1, MAX_CHOICES) != n:
        raise APIError("best_of must equal n: texts are not ranked by this server.", param="best_of")
    infill = fields.text("infill", "", MAX_CHARACTERS)
    suffix = fields.text("suffix", "", MAX_CHARACTERS)
    prompts = _parse_prompts(fields)
    echo = fields.flag("echo")
    if infill and (prompts != ("",) or suffix or echo):
        raise APIError("infill is the whole text with its gaps: leave out prompt, suffix and echo.", param="infill")
    if "infill" in fields and "max_tokens" in fields:
        raise APIError("The gaps of infill say how many tokens are generated; leave out max_tokens.", param="infill")
    shared = _shared(fields)
    if shared["text_format"] is not None and (infill or suffix):
        raise APIError("response_format applies to what follows a prompt; leave out suffix and infill.", param=FIELD)
    if len(prompts) * n > MAX_CHOICES:
        message = f"A request may ask for {MAX_CHOICES} texts, not for {len(prompts)} prompts × {n}."
        raise APIError(message, param="n")
    return CompletionRequest(
        "text", prompts=prompts, suffix=suffix, infill=infill, echo=echo, n=n,
        max_tokens=fields.whole("max_tokens", 0, 1, MAX_TOKENS) if "max_tokens" in fields else None, **shared,
    )  # fmt: skip


def parse_chat(content: Mapping[str, Any]) -> CompletionRequest:
    """Check a request to /v1/chat/completions."""
    fields = Fields(content, CHAT)
    _check_unsupported(fields)
    fields.only("top_logprobs", [0], "log-probabilities are not returned")
    for name in ("tools", "functions"):
        fields.only(name, [[]], "models have no tools here")
    fields.only("tool_choice", ["none", "auto"], "models have no tools here")
    fields.only("function_call", ["none", "auto"], "models have no tools here")
    fields.only("modalities", [["text"]], "models write text only")
    for name in ("audio", "prediction", "web_search_options"):
        fields.only(name, [], "models write text only")
    given = [name for name in ("max_completion_tokens", "max_tokens") if name in fields]
    most = fields.whole(given[0], 0, 1, MAX_TOKENS) if given else None
    n = fields.whole("n", 1, 1, MAX_CHOICES)
    return CompletionRequest("chat", messages=_parse_messages(fields), n=n, max_tokens=most, **_shared(fields))


def _shared(fields: Fields) -> dict[str, Any]:
    """The fields of both kinds of requests."""
    if "model" not in fields:
        raise APIError("model is missing; /v1/models lists what is served.", param="model")
    options = fields.mapping("stream_options")
    stream = fields.flag("stream")
    if unknown := [name for name in options if name not in ("include_usage", "include_obfuscation")]:
        raise APIError(f"stream_options has no field {unknown[0]!r:.60}.", param="stream_options")
    if options and not stream:
        raise APIError("stream_options needs stream=true.", param="stream_options")
    include = options.get("include_usage")
    if include is not None and type(include) is not bool:
        raise refuse("stream_options.include_usage", "true or false", include)
    draft = fields.flag("draft")
    if draft and not stream:
        raise APIError("draft needs stream=true: drafts are events of the stream.", param="draft")
    return {
        "model": fields.text("model", "", 400),
        "stop": _parse_stops(fields),
        "seed": _parse_seed(fields),
        "logit_bias": _parse_biases(fields.mapping("logit_bias")),
        "stream": stream,
        "include_usage": bool(include),
        "draft": draft,
        "text_format": parse_format(fields),
        "settings": GenerationSettings(
            steps=fields.whole("steps", GenerationSettings.steps, 1, MAX_STEPS),
            sampler=fields.text("sampler", "", 60) or None,
            block_length=fields.whole("block_length", 0, 1, MAX_TOKENS) if "block_length" in fields else None,
            temperature=fields.number("temperature", None, 0.0, 2.0),
            top_p=_parse_top_p(fields),
        ),
    }


def _check_unsupported(fields: Fields) -> None:
    fields.text("user", "", MAX_CHARACTERS)
    fields.only("presence_penalty", [0], "positions are predicted together, so there are no earlier tokens to count")
    fields.only("frequency_penalty", [0], "positions are predicted together, so there are no earlier tokens to count")
    fields.only("logprobs", [0, False], "log-probabilities are not returned")


def _parse_top_p(fields: Fields) -> float:
    value = fields.number("top_p", 1.0, 0.0, 1.0)
    if not value:
        raise refuse("top_p", "a number above 0 and at most 1", value)
    return value


def _parse_seed(fields: Fields) -> int | None:
    return fields.whole("seed", 0, 0, 2**63 - 1) if "seed" in fields else None


def _parse_stops(fields: Fields) -> tuple[str, ...]:
    value = fields.content.get("stop", [])
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise refuse("stop", f"a text or a list of at most {MAX_STOPS} texts", value)
    if "" in stops:
        raise APIError("stop must not be empty.", param="stop")
    return tuple(check_text("stop", stop, MAX_STOP_CHARACTERS) for stop in stops)


def _parse_biases(given: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    if len(given) > MAX_BIASES:
        raise APIError(f"logit_bias may name {MAX_BIASES} tokens, not {len(given)}.", param="logit_bias")
    found = dict[int, float]()
    for token, bias in given.items():
        if not (token.isascii() and token.isdecimal() and len(token) <= 9):
            raise refuse("logit_bias", "an object from token numbers to biases", token)
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise refuse(f"logit_bias of token {token}", "a number from -100 to 100", bias)
        found[int(token)] = float(bias)
    return tuple(sorted(found.items()))


def _parse_prompts(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    value = fields.content.get("prompt", "")
    if isinstance(value, str):
        return (check_text("prompt", value, MAX_CHARACTERS),)
    if not isinstance(value, list) or not value or len(value) > MAX_CHARACTERS:
        raise refuse("prompt", "a text, a list of texts, or token numbers", value)
    if all(type(item) is int for item in value):
        return (tuple(value),)
    if len(value) > MAX_CHOICES:
        raise APIError(f"prompt may hold {MAX_CHOICES} texts, not {len(value)}.", param="prompt")
    if all(isinstance(item, list) and item and all(type(token) is int for token in item) for item in value):
        return tuple(tuple(item) for item in value)
    return tuple(check_text("prompt", item, MAX_CHARACTERS) for item in value)


def _parse_messages(fields: Fields) -> tuple[Message, ...]:
    value = fields.content.get("messages")
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise refuse("messages", f"a list of 1 to {MAX_MESSAGES} messages", value)
    return tuple(_parse_message(message, f"messages[{number}]") for number, message in enumerate(value))


def _parse_message(value: object, name: str) -> Message:
    if not isinstance(value, dict) or not {"role", "content"} <= value.keys() <= {"role", "content", "name", "refusal"}:
        raise refuse(name, "an object with a role and a content", value)
    role = value["role"]
    if not isinstance(role, str) or role not in ROLES:
        raise refuse(f"{name}.role", f"one of {', '.join(ROLES)}", role)
    content = value["content"]
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(parts) < len(content):
            raise APIError(f"{name} may hold parts of the type text only.", param="messages", code="unsupported")
        content = "".join(check_text(f"{name}.content", part, MAX_CHARACTERS) for part in parts)
    return {"role": ROLES[role], "content": check_text(f"{name}.content", content, MAX_CHARACTERS)}
