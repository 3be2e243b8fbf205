"""The description of the interface (OpenAPI 3.1), written by hand from the same limits that requests are checked by."""

from typing import Any

from logosphere.serving.limits import (
    MAX_BIASES,
    MAX_CHARACTERS,
    MAX_CHOICES,
    MAX_MESSAGES,
    MAX_STEPS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
)
from logosphere.serving.models import Catalogue
from logosphere.serving.protocol import MAX_TOKENS, ROLES

Schema = dict[str, Any]


def describe(catalogue: Catalogue, has_key: bool, version: str) -> Schema:
    """The page of /openapi.json."""
    names = list(catalogue.models)
    paths = {
        "/v1/models": {"get": _operation("List the models", "ModelList")},
        "/v1/models/{model}": {
            "get": _operation("Describe a model", "Model", 404)
            | {
                "parameters": [
                    {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "enum": names}}
                ]
            }
        },
        "/v1/completions": {"post": _post("Continue a text, or fill a gap in it", "CompletionRequest", "Completion")},
        "/v1/chat/completions": {"post": _post("Answer in a conversation", "ChatRequest", "ChatCompletion")},
        "/health": {"get": _operation("Whether the server takes requests", "Health", 503) | {"security": []}},
        "/metrics": {"get": _metrics()},
        "/openapi.json": {"get": _operation("This page", "Page")},
    }
    components: Schema = {"schemas": _schemas(names)}
    page: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "Logosphere",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": components,
    }
    if has_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        page["security"] = [{"key": []}]
    return page


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(name: str) -> Schema:
    return {"application/json": {"schema": _ref(name)}}


def _errors(*statuses: int) -> Schema:
    return {str(status): {"description": "An error", "content": _json("Error")} for status in statuses}


def _operation(about: str, answer: str, *errors: int) -> Schema:
    good = {"200": {"description": about, "content": _json(answer)}}
    answers = good | _errors(400, 401, 403, 405)
    if answer == "Health":
        answers |= {"503": {"description": "The server is stopping", "content": _json(answer)}}
    else:
        answers |= _errors(*errors)
    return {"summary": about, "operationId": about.split()[0].lower() + answer, "responses": answers}


def _post(about: str, request: str, answer: str) -> Schema:
    operation = _operation(about, answer, 404, 413, 415, 429, 500, 503, 504)
    event = _object({"data": {"type": "string"}, "event": {"enum": ["message", "draft"]}}, ["data"])
    operation["responses"]["200"]["content"]["text/event-stream"] = {"schema": event}
    return operation | {"requestBody": {"required": True, "content": _json(request)}}


def _metrics() -> Schema:
    operation = _operation("Figures of the server for Prometheus", "Metrics")
    operation["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return operation


def _whole(low: int, high: int, about: str) -> Schema:
    return {"type": ["integer", "null"], "minimum": low, "maximum": high, "description": about}


def _number(low: float, high: float, about: str) -> Schema:
    return {"type": ["number", "null"], "minimum": low, "maximum": high, "description": about}


def _text(limit: int, about: str = "") -> Schema:
    return {"type": "string", "maxLength": limit, "description": about}


def _flag(about: str) -> Schema:
    return {"type": ["boolean", "null"], "description": about}


def _object(properties: Schema, required: list[str]) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def _shared(names: list[str]) -> Schema:
    """The fields of both kinds of requests."""
    stop = _text(MAX_STOP_CHARACTERS) | {"minLength": 1}
    bias = {"type": "number", "minimum": -100, "maximum": 100}
    return {
        "model": {"type": "string", "enum": names},
        "n": _whole(1, MAX_CHOICES, f"Texts; at most {MAX_CHOICES} over all prompts."),
        "stream": _flag("Answer by server-sent events."),
        "stop": {"anyOf": [{"type": "null"}, stop, {"type": "array", "maxItems": MAX_STOPS, "items": stop}]},
        "seed": _whole(0, 2**63 - 1, "The same seed gives the same text, whatever else is sampled at the time."),
        "temperature": _number(0.0, 2.0, "0 takes the likeliest tokens; without it the default of the model."),
        "top_p": _number(0.0, 1.0, "The likeliest tokens with this probability; above 0.") | {"exclusiveMinimum": 0},
        "logit_bias": {
            "type": ["object", "null"],
            "maxProperties": MAX_BIASES,
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": bias,
        },
        "max_tokens": _whole(1, MAX_TOKENS, "Tokens of each text, at most."),
        "response_format": _response_format(),
        "steps": _whole(1, MAX_STEPS, "Steps of the sampler."),
        "sampler": {"type": ["string", "null"], "maxLength": 60, "description": "A name of `logosphere samplers`."},
        "block_length": _whole(1, MAX_TOKENS, "Tokens of a block; blocks are decoded from left to right."),
        "user": _text(MAX_CHARACTERS) | {"type": ["string", "null"]},
    }


def _response_format() -> Schema:
    """Texts of any form, JSON of a schema, or texts that match a regular expression."""
    schema = _object({"name": {"type": "string"}, "schema": {"type": "object"}}, ["schema"])
    kinds = [
        _object({"type": {"const": "text"}}, ["type"]) | {"additionalProperties": False},
        _object({"type": {"const": "json_schema"}, "json_schema": schema}, ["type", "json_schema"]),
        _object({"type": {"const": "regex"}, "regex": _text(MAX_CHARACTERS)}, ["type", "regex"])
        | {"additionalProperties": False},
    ]
    return {"anyOf": [{"type": "null"}, *kinds], "description": "Every text has this format."}


def _schemas(names: list[str]) -> Schema:
    prompt = _text(MAX_CHARACTERS)
    token = {"type": "integer", "minimum": 0}
    prompts = [
        prompt,
        {"type": "array", "minItems": 1, "maxItems": MAX_CHOICES, "items": prompt},
        {"type": "array", "minItems": 1, "items": token},
    ]
    options = {"anyOf": [{"type": "null"}, _object({"include_usage": _flag("Send the usage at the end.")}, [])]}
    streaming = {"stream_options": options, "draft": _flag("Send the whole text as it is after each step.")}
    part = _object({"type": {"const": "text"}, "text": _text(MAX_CHARACTERS)}, ["type", "text"])
    message = _object(
        {
            "role": {"type": "string", "enum": list(ROLES)},
            "content": {"anyOf": [_text(MAX_CHARACTERS), {"type": "array", "items": part}]},
        },
        ["role", "content"],
    )
    completion = _shared(names) | streaming | {
        "prompt": {"anyOf": [{"type": "null"}, *prompts]},
        "suffix": _text(MAX_CHARACTERS, "Text after a gap of max_tokens.") | {"type": ["string", "null"]},
        "infill": {"type": ["string", "null"], "description": "A text with gaps such as [....] or [12]."},
        "echo": _flag("Repeat the prompt."),
    }  # fmt: skip
    chat = _shared(names) | streaming | {
        "messages": {"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": message},
        "max_completion_tokens": _whole(1, MAX_TOKENS, "Tokens of each answer, at most."),
    }  # fmt: skip
    usage = {name: token for name in ("prompt_tokens", "completion_tokens", "total_tokens", "nfe")}
    reason = {"type": "string", "enum": ["stop", "length"]}
    answer = {
        "id": {"type": "string"},
        "created": token,
        "model": {"type": "string"},
        "seed": token,
        "usage": _ref("Usage"),
    }
    kinds = {
        "Completion": ("text_completion", {"text": {"type": "string"}}),
        "ChatCompletion": (
            "chat.completion",
            {"message": _object({"role": {"const": "assistant"}, "content": {"type": "string"}}, ["role", "content"])},
        ),
    }
    made = {
        name: _object(
            answer
            | {"object": {"const": kind}}
            | {
                "choices": {
                    "type": "array",
                    "items": _object(own | {"index": token, "finish_reason": reason}, [*own, "index", "finish_reason"]),
                }
            },
            ["id", "object", "created", "model", "choices", "usage"],
        )
        for name, (kind, own) in kinds.items()
    }
    model = _object(
        {"id": {"type": "string"}, "object": {"const": "model"}, "created": token, "owned_by": {"type": "string"}},
        ["id", "object", "created", "owned_by"],
    )
    nullable = {"type": ["string", "null"]}
    error = _object(
        {"message": {"type": "string"}, "type": {"type": "string"}, "param": nullable, "code": nullable},
        ["message", "type", "param", "code"],
    )
    return made | {
        "CompletionRequest": _object(completion, ["model"]) | {"additionalProperties": False},
        "ChatRequest": _object(chat, ["model", "messages"]) | {"additionalProperties": False},
        "Usage": _object(usage, list(usage)),
        "Model": model,
        "ModelList": _object(
            {"object": {"const": "list"}, "data": {"type": "array", "items": _ref("Model")}}, ["object", "data"]
        ),
        "Error": _object({"error": error}, ["error"]),
        "Health": _object({"status": {"enum": ["ok", "stopping"]}, "waiting": token, "running": token}, ["status"]),
        "Page": {"type": "object"},
        "Metrics": {"type": "string"},
    }
