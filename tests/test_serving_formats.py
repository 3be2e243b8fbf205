"""Texts of the server in a format: regular expressions, JSON of a schema, and requests that cannot be met."""

import json
import re
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette")
openai = pytest.importorskip("openai")
from chat_fixtures import TEXT, write_instruct  # noqa: E402
from serving_helpers import LENGTH, SHORT, make_client, write_model  # noqa: E402

from logosphere.data.tokenizer_registry import SubwordTokenizer  # noqa: E402
from logosphere.runs.import_checkpoint import import_checkpoint  # noqa: E402
from logosphere.serving.server import serve  # noqa: E402

SYSTEMS = {"masked": "mdlm", "causal": "ar", "sphere": "rdlm", "uniform": "udlm"}
PATTERN = "the (cat|dog)( [a-z]{2,6})+"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator["openai.OpenAI"]:
    folder = tmp_path_factory.mktemp("formats")
    places = [write_model(folder / name, system) for name, system in SYSTEMS.items()]
    places += [write_model(folder / "ending", "mdlm", ends=True), folder / "instruct"]
    source = write_instruct(folder / "source")
    tokenizer = SubwordTokenizer.train_bpe([TEXT, '{"name": "ann", "age": 0123456789}'], 300)
    (source / "tokenizer.json").write_text(tokenizer.describe()["json"])
    import_checkpoint(str(source), folder / "instruct")
    with serve(places, connections=SHORT) as address:
        yield make_client(address)


def ask(client: "openai.OpenAI", name: str, pattern: str = PATTERN, prompt: str = "", **options: object) -> str:
    extra = {"steps": 8, "response_format": {"type": "regex", "regex": pattern}}
    answer = client.completions.create(model=name, prompt=prompt, extra_body=extra, **options)  # type: ignore[call-overload]
    return str(answer.choices[0].text)


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_texts_match_a_regular_expression(client: "openai.OpenAI", name: str) -> None:
    """The text after the prompt matches, and the same seed gives it again."""
    texts = [ask(client, name, prompt="so ", seed=seed) for seed in range(3)]
    assert all(re.fullmatch(PATTERN, text) and len(text) == LENGTH - 3 for text in texts), texts
    assert len(set(texts)) > 1
    assert texts[0] == ask(client, name, prompt="so ", seed=0)


def test_a_text_that_ends_matches(client: "openai.OpenAI") -> None:
    texts = [ask(client, "ending", "(a|b){2,9}", max_tokens=12, seed=seed) for seed in range(8)]
    assert all(re.fullmatch("(a|b){2,9}", text) for text in texts), texts


def test_streams_match(client: "openai.OpenAI") -> None:
    extra = {"steps": 8, "response_format": {"type": "regex", "regex": PATTERN}}
    stream = client.completions.create(model="masked", prompt="", seed=1, stream=True, extra_body=extra)
    text = "".join(chunk.choices[0].text for chunk in stream)
    assert re.fullmatch(PATTERN, text), text


def test_an_answer_is_json_of_a_schema(client: "openai.OpenAI") -> None:
    """The answer of a chat parses and has the fields of the schema, with a network of random weights."""
    shape = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(
        model="instruct", messages=[{"role": "user", "content": "the cat"}], max_tokens=48, seed=0,
        response_format=shape, extra_body={"steps": 12},
    )  # type: ignore[call-overload]  # fmt: skip
    found = json.loads(answer.choices[0].message.content)
    assert found.keys() == {"name", "age"} and len(found["name"]) <= 6 and 0 <= found["age"] <= 99


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"type": "regex", "regex": "("}, "regular expression"),
        ({"type": "regex", "regex": "x{100}"}, "matches no text"),
        ({"type": "regex", "regex": "((a{1000}){1000}){1000}"}, "limit"),
        ({"type": "regex", "regex": 3}, "must be a text"),
        ({"type": "json_object"}, "use json_schema"),
        ({"type": "json_schema"}, "must be"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "tuple"}}}, "tuple"),
        ({"type": "xml"}, "must be"),
    ],
)
def test_formats_that_cannot_be_met_are_refused(client: "openai.OpenAI", shape: dict[str, object], words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        client.completions.create(model="masked", prompt="the", extra_body={"response_format": shape})
    assert caught.value.param == "response_format"
    assert ask(client, "masked", seed=0)  # the server lives on


def test_gaps_have_no_format(client: "openai.OpenAI") -> None:
    with pytest.raises(openai.BadRequestError, match="leave out suffix"):
        ask(client, "masked", prompt="the", suffix="end")
