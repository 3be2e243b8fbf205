"""Conversations with instruct models: the template of a checkpoint in a sandbox, and answers that end."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chat_fixtures import EOS, LLADA, TEXT, write_instruct
from cli_helpers import error_line, read_json

import logosphere as ls
from logosphere.checkpoints import chat
from logosphere.checkpoints.chat import make_messages, render_chat, render_chats
from logosphere.checkpoints.llama_models import CONVENTIONS
from logosphere.cli import main
from logosphere.data.tokenizers import encode_infill, encode_prompt
from logosphere.errors import UserError
from logosphere.runs.chat import apply_template, cut_answer
from logosphere.runs.import_checkpoint import import_checkpoint
from logosphere.runs.sample import sample_run
from logosphere.runs.settings import SampleConfig
from logosphere.sampling.decoding import DecodingConfig
from logosphere.sampling.generate import generate
from logosphere.sampling.published import end_tokens, start_token, turn_end_tokens


def test_a_conversation_is_rendered_as_in_training() -> None:
    messages = make_messages(["Hi ", "Hello", "Why?"], "Be kind.")
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert render_chat(LLADA, messages[1:2], {"bos": "<s>"}) == (
        "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    qwen = (
        "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n' }}{%- endif %}\n"
        "{%- for message in messages %}{%- if message.role == 'system' %}{%- continue %}{%- endif %}\n"
        "{%- generation %}{{- message.role + ':' + message.content + eos_token }}{%- endgeneration %}{%- endfor %}"
    )
    assert render_chat(qwen, messages, {"eos": "|"}) == "Be kind.\nuser:Hi |assistant:Hello|user:Why?|"
    for turns, words in ((["a", "b"], "odd number of messages, not 2"), ([], "not 0"), ([" "], "Message 1")):
        with pytest.raises(UserError, match=words):
            make_messages(turns)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "none may do"),
        ("{{ messages.append(1) }}", "none may do"),
        ("{{ render.__globals__ }}", "fails on this conversation|none may do"),
        ("{% for i in range(10**9) %}x{% endfor %}", "fails on this conversation"),
        ("{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", "more than 1,048,576 characters"),
        ("{{ raise_exception('only two turns') }}", "refuses this conversation: 'only two turns'"),
        ("{% include '/etc/passwd' %}", "fails on this conversation"),
        ("{% if %}", "not valid"),
        ("{{ messages[7].role + 1 }}", "fails on this conversation"),
        ("{{ 'x' * 10**10 }}", "too much memory"),
        ("{{ 'x' * 2**63 }}", "fails on this conversation"),
        ("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "fails on this conversation|too much memory"),
        ("x" * (1 << 21), "at most 1,048,576 are read"),
    ],
)
def test_templates_of_strangers_do_no_harm(template: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        render_chat(template, make_messages(["Hi"]), {})
    assert "\n" not in str(caught.value)


ENDLESS = (
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = i * j %}{% endfor %}{% endfor %}x",
    "{{ 9 ** (9 ** 9) }}",
    "{% set n = namespace(x=['a']) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{{ ('a' * 200000 + 'b') | replace('a' * 100000 + 'b', 'c') | wordwrap(1) | indent | title | center(300000000) }}",
    "{{ (range(100000) | list | string) | regex }}{% for a in range(100000) %}{{ a | pprint }}{% endfor %}",
)


@pytest.mark.slow
@pytest.mark.parametrize("template", ENDLESS)
def test_templates_that_do_not_end_are_ended(template: str) -> None:
    """Within seconds, with one sentence, and no process is left."""
    before = time.monotonic()
    with pytest.raises(UserError, match="chat template") as caught:
        render_chat(template, make_messages(["Hi"]), {})
    assert "\n" not in str(caught.value) and time.monotonic() - before < chat.SECONDS + 10


def test_a_template_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "SECONDS", 0.5)
    with pytest.raises(UserError, match="takes more than"):
        render_chat(ENDLESS[0], make_messages(["Hi"]), {})


def test_ends_of_texts_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    model = ls.import_model(write_instruct(tmp_path / "a"))
    assert end_tokens(model) == (EOS, 3)
    assert model.special_token("pad") == EOS and turn_end_tokens(model) == ()
    assert cut_answer(model, [9, 9, 8, 3, 7, EOS], 2) == [8] and cut_answer(model, [9, 8, 7], 1) == [8, 7]

    def drawn(**options: bool) -> torch.Tensor:
        config = DecodingConfig(gen_length=64, block_length=64, **options)
        return generate(model, 4, 16, 0, sampler="llada", temperature=100.0, decoding=config).tokens

    hidden = drawn(logits_eos_inf=True)
    assert not (hidden == EOS).any() and not (hidden == 3).any()
    model.spec = replace(model.spec, checkpoint=model.spec.checkpoint | {"special": {}})  # type: ignore[arg-type, operator, type-var]
    assert not torch.equal(drawn(logits_eos_inf=True), hidden), "the ends are those of the checkpoint"


def test_prompts_begin_with_bos_where_training_texts_did(tmp_path: Path) -> None:
    """Of LLaDA, DiffuLLaMA and DiffuGPT; once, and not where a chat template has written the text."""
    source = write_instruct(tmp_path / "a")
    model = ls.import_model(source)
    assert model.spec is not None and model.spec.checkpoint is not None and model.tokenizer is not None
    bos, ids = model.special_token("bos"), model.tokenizer.encode("the cat").tolist()
    assert start_token(model) == bos == 0
    for encode in (encode_prompt, encode_infill):
        given = encode("the cat", model.tokenizer, model.length, bos)
        assert given.tokens[given.known].tolist() == [bos, *ids]
        twice = encode(model.tokenizer.decode([0]) + "the cat", model.tokenizer, model.length, bos)
        assert torch.equal(given.tokens, twice.tokens)
    gap = encode_infill("[..] cat", model.tokenizer, model.length, bos)
    assert gap.known[:4].tolist() == [True, False, False, True] and gap.tokens[0] == bos
    import_checkpoint(source, tmp_path / "run")
    drawn = sample_run(tmp_path / "run", SampleConfig(prompt="the cat", n=1, steps=2))
    assert drawn.tokens[0, : len(ids) + 1].tolist() == [bos, *ids]
    chat = sample_run(tmp_path / "run", SampleConfig(chat=("the cat",), n=1, steps=2))
    assert chat.tokens[0, 0] == bos and chat.tokens[0, 1] != bos
    for checkpoint in (model.spec.checkpoint | {"starts_with_bos": False}, {"special": {"bos": 0}}, None):
        model.spec = replace(model.spec, checkpoint=checkpoint)
        assert start_token(model) is None


def test_families_that_begin_texts_with_bos() -> None:
    assert {one.name for one in CONVENTIONS if one.starts_with_bos} == {"LLaDA", "DiffuLLaMA"}


def test_the_length_of_an_answer_fits_the_model(tmp_path: Path) -> None:
    model = ls.import_model(write_instruct(tmp_path / "a"))
    assert model.tokenizer is not None

    def length(**options: int) -> int | None:
        config = SampleConfig(chat=("the cat",), decoding=DecodingConfig(**options))  # type: ignore[arg-type]
        return apply_template(model, model.tokenizer, config).decoding.gen_length  # type: ignore[arg-type]

    assert (length(), length(gen_length=8), length(block_length=24)) == (128, 8, 120)
    with pytest.raises(UserError, match="shorten it"):
        apply_template(model, model.tokenizer, SampleConfig(chat=(TEXT,)))


@pytest.mark.usefixtures("workplace")
def test_chat_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(write_instruct()), "--out", "run"]) == 0
    capsys.readouterr()
    argv = ["sample", "run", "-n", "2", "--steps", "8", "--json", "--gen-length", "16"]
    assert main([*argv, "--chat", "the cat", "--system-message", "a mat"]) == 0
    samples = read_json(capsys)["samples"]
    model = ls.load("run")
    for sample in samples:
        assert not set(end_tokens(model)) & set(sample["answer"]) and len(sample["answer"]) <= 16
        assert sample["text"] == model.tokenizer.decode(sample["answer"])  # type: ignore[union-attr]
        assert "the cat<|eot_id|>" in model.tokenizer.decode(sample["tokens"])  # type: ignore[union-attr]
    assert main([*argv, "--chat", "the cat", "a hat", "why?", "--sampler", "fast-dllm", "--cache", "dual"]) == 0
    assert read_json(capsys)["cache_report"]["compared"] == 4
    assert "leave out --prompt" in error_line(capsys, [*argv, "--chat", "a", "--prompt", "b"])
    assert "add --chat" in error_line(capsys, [*argv, "--system-message", "a"])
    assert "odd number" in error_line(capsys, [*argv, "--chat", "a", "b"])
    assert main(["import", str(write_instruct(Path("base"), None)), "--out", "base-run"]) == 0
    assert "no chat template" in error_line(capsys, ["sample", "base-run", "--chat", "a"])
    assert "no chat template" in error_line(capsys, ["sample", "pretrained:mdlm", "--chat", "a"])


def test_a_part_of_a_long_imported_model_is_generated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequences of thousands of positions are not generated whole unless the user says so."""
    monkeypatch.chdir(tmp_path)
    assert main(["import", str(write_instruct(length=1200)), "--out", "run"]) == 0
    capsys.readouterr()
    command = ["sample", "run", "--prompt", "the cat ", "-n", "1", "--steps", "2", "--json"]
    assert main(command) == 0
    printed = capsys.readouterr()
    prompt = 1 + len(ls.load("run").tokenizer.encode("the cat "))  # after bos
    assert len(json.loads(printed.out)["samples"][0]["tokens"]) == prompt + 128
    assert "have 1,200 tokens, of which 128 are generated; --gen-length sets another number" in printed.err
    assert main([*command, "--gen-length", "8"]) == 0
    assert len(read_json(capsys)["samples"][0]["tokens"]) == prompt + 8


def test_conversations_are_rendered_together_and_named() -> None:
    """Many conversations take few processes, in order, and the one at fault is named."""
    template = "{% if messages[0].content == 'bad' %}{{ raise_exception('no') }}{% endif %}<{{ messages[0].content }}>"
    conversations = [make_messages([f"text {number}"]) for number in range(600)]
    assert render_chats(template, conversations, {}) == [f"<text {number}>" for number in range(600)]
    conversations[400] = make_messages(["bad"])
    with pytest.raises(UserError, match="refuses conversation 401: 'no'"):
        render_chats(template, conversations, {})
