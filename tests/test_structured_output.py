"""Structured output: texts of a schema parse and validate, by the command and in Python, for several tokenizers."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from cli_helpers import error_line, read_json
from toy_models import SMALL

import logosphere as ls
from logosphere.cli import main
from logosphere.data.tokenizer_registry import make_tokenizer
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.rng import GeneratorNoise
from logosphere.sampling.structured.automaton import build_automaton
from logosphere.sampling.structured.json_schema import parse_schema
from logosphere.sampling.structured.pieces import Pieces, read_pieces
from logosphere.sampling.structured.product import RestrictedProduct
from logosphere.sampling.structured.token_automaton import build_token_automaton

SCHEMAS: dict[str, dict[str, Any]] = {
    "object": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer"}, "x": {"type": "null"}},
        "required": ["age"],
    },
    "optional": {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in "abc"},
        "additionalProperties": False,
    },
    "array": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
    "empty": {"type": "array", "items": {"type": "null"}, "maxItems": 2},
    "range": {"type": "integer", "minimum": -12, "maximum": 105},
    "pattern": {"type": "string", "pattern": '^["\\\\/a-c\n]{1,3}$'},
    "search": {"type": "string", "pattern": "[xy]"},
    "length": {"type": "string", "minLength": 2, "maxLength": 3},
    "enum": {"enum": ['a"b', 1, None, {"k": [True]}]},
    "typed enum": {"type": ["string", "boolean"], "enum": ["a", 1, True, None]},
    "any of": {"anyOf": [{"type": "boolean"}, {"const": "é"}]},
    "one of": {"oneOf": [{"type": "string", "maxLength": 1}, {"type": "integer"}]},
    "reference": {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/point"}, "q": {"$ref": "#/$defs/point"}},
        "required": ["p"],
        "$defs": {"point": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
    },
}


def draw_texts(schema: dict[str, Any], n: int = 40, length: int = 60) -> list[str]:
    """Texts of a schema, every byte equally likely where the automaton allows it, spaces at the end left out."""
    letters = tuple(bytes([byte]) for byte in range(256))
    pieces = Pieces((*letters, b""), (*letters, b""), 256)
    automaton = build_token_automaton(parse_schema(schema), pieces, "The JSON schema")
    log_p = torch.full((257,), -6.0)
    log_p[256] = -1.0  # short texts are likely
    shape = (n, length)
    product = RestrictedProduct(
        automaton, torch.ones(shape, dtype=torch.bool), log_p.expand(n * length, -1), torch.zeros(shape,
        dtype=torch.long),
        torch.zeros(shape, dtype=torch.bool), torch.zeros(n, dtype=torch.long), automaton.accepting.expand(n, -1),
    )  # fmt: skip
    rows = product.sample(GeneratorNoise(torch.Generator().manual_seed(0), n)).tolist()
    return [bytes(token for token in row if token < 256).decode() for row in rows]


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_text_parses_and_validates(name: str) -> None:
    for text in draw_texts(SCHEMAS[name]):
        jsonschema.validate(json.loads(text), SCHEMAS[name])


def test_what_a_schema_accepts() -> None:
    automaton = build_automaton(parse_schema(SCHEMAS["object"]))
    for text in ('{"age":1}', '{"name": "a", "age": -2, "x": null}', '{"name":"\\"","age":0}'):
        assert automaton.accepts(text), text
    for text in ('{"name":"a"}', '{"age":1,}', '{"age":1,"name":"a"}', '{"age":01}', '{"name":"abcde","age":1}', "{}"):
        assert not automaton.accepts(text), text
    integers = build_automaton(parse_schema(SCHEMAS["range"]))
    assert [number for number in range(-200, 200) if integers.accepts(str(number))] == list(range(-12, 106))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "not JSON"), ([1], "must be an object"), ({}, "no type"), ({"type": "text"}, "'text'"),
        ({"type": "string", "multipleOf": 2}, "'multipleOf'"),
        ({"type": "object", "patternProperties": {}}, "patternProp"),
        ({"type": "integer", "minimum": 3}, "both a minimum and a maximum"), ({"type": "array"}, "without items"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "refers to itself"),
        ({"$ref": "#/no"}, "not in the schema"),
        ({"type": "object", "required": ["a"]}, "not in properties"), ({"anyOf": []}, "not empty"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "could meet together"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
        ({"type": "string", "pattern": "(a)\\1"}, "back ref"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 10**6}, "limit is 20,000"),
        ({"type": "object", "properties": {"a": {}}}, "accepts any"),
        ({"type": "string", "pattern": "a", "maxLength": 3}, "both"),
        ({"type": "object", "properties": {"a": True}}, "accepts any"), ({"$ref": "http://x"}, "begin with"),
        ({"anyOf": [{"type": "null"}], "enum": [1]}, "both"), ({"type": "string", "maximum": 3}, "'maximum'"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(schema: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as found:
        parse_schema(schema)
    assert "\n" not in str(found.value)


def test_references_that_multiply_are_refused_fast() -> None:
    links = {f"s{n}": {"type": "array", "items": {"$ref": f"#/$defs/s{n + 1}"}} for n in range(200)}
    with pytest.raises(UserError, match="inside one another"):
        parse_schema({"$ref": "#/$defs/s0", "$defs": links})
    doubled = {f"s{n}": {"anyOf": [{"$ref": f"#/$defs/s{n + 1}"}, {"$ref": f"#/$defs/s{n + 1}"}]} for n in range(20)}
    with pytest.raises(UserError, match="2,000 schemas"):
        parse_schema({"$ref": "#/$defs/s0", "$defs": doubled | {"s20": {"type": "null"}}})


# ---- tokenizers ------------------------------------------------------------------------------------------------------

PROSE = ["the cat sat on the mat", "a dog ran to the sea", "it is 12 o'clock, said Éva"] * 20


@pytest.mark.parametrize("name", ["byte", "characters", "bpe:300", "wordpiece:90"])
def test_pieces_spell_what_the_tokenizer_decodes(name: str) -> None:
    tokenizer = make_tokenizer(name, PROSE, end=True)
    pieces, rng = read_pieces(tokenizer), torch.Generator().manual_seed(0)
    usable = torch.tensor([token for token, piece in enumerate(pieces.later) if piece])
    assert pieces.end == tokenizer.eos and not pieces.later[tokenizer.eos]
    for _ in range(20):
        row = usable[torch.randint(len(usable), (12,), generator=rng)].tolist()
        spelled = pieces.first[row[0]] + b"".join(pieces.later[token] for token in row[1:])
        assert spelled.decode("utf-8", "replace") == tokenizer.decode(row)


def small_model(name: str, length: int = 40, system: str = "mdlm") -> Model:
    tokenizer = make_tokenizer(name, PROSE, end=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ls.build(system, vocab_size=tokenizer.size, length=length, **SMALL)
    model.tokenizer = tokenizer
    return model


@pytest.mark.parametrize("name", ["byte", "bpe:300", "wordpiece:90"])
def test_texts_of_any_tokenizer_match(name: str) -> None:
    model, match = small_model(name), "the [a-z ]{2,9}(cat|sea)"
    texts = ls.generate_text(model, n=8, steps=4, rng=0, constraint=ls.constrain(model, match=match))
    assert len(texts) == 8 and all(re.fullmatch(match, text) for text in texts)


def test_json_of_an_untrained_model_parses() -> None:
    model = small_model("bpe:300", 64)
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
        "required": ["n", "s"],
    }
    for length in (None, 40):
        constraint = ls.constrain(model, json_schema=schema, length=length)
        for text in ls.generate_text(model, n=8, steps=4, rng=0, constraint=constraint):
            jsonschema.validate(json.loads(text), schema)


def test_a_prompt_is_part_of_the_text() -> None:
    model = small_model("byte")
    constraint = ls.constrain(model, match=r"the \w+ \d{3}")
    texts = ls.generate_text(model, "the ca", n=4, steps=4, rng=0, constraint=constraint)
    assert all(re.fullmatch(r"the ca\w* \d{3}", text) for text in texts)
    texts = ls.generate_text(model, infill="the [....] 1[..]", n=4, steps=4, rng=0, constraint=constraint)
    assert all(re.fullmatch(r"the .{1,4} 1\d\d", text) for text in texts)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_matches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMAS["object"]))
    small = ["-n", "2", "--steps", "4", "--json"]
    assert main(["sample", "pretrained:stories", *small, "--json-schema", str(schema)]) == 0
    for sample in read_json(capsys)["samples"]:
        jsonschema.validate(json.loads(sample["text"]), SCHEMAS["object"])
    assert main(["sample", "pretrained:mdlm", *small, "--match", "the [a-z]+ of .*", "--length", "30"]) == 0
    for sample in read_json(capsys)["samples"]:
        assert re.fullmatch("the [a-z]+ of .*", sample["text"]) and len(sample["text"]) == 30


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--match", "a", "--json-schema", "x.json"], "either --match or --json-schema"),
        (["--particles", "4"], "--particles belongs"), (["--match", "a*", "--length", "500"], "several windows"),
        (["--match", "[A-Z]*"], "matches no text"), (["--json-schema", "none.json"], "cannot be read"),
    ],
)  # fmt: skip
def test_mistakes_of_the_command(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in error_line(capsys, ["sample", "pretrained:mdlm", "-n", "1", "--steps", "2", *arguments])
