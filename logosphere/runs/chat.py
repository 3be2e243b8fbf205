"""Conversations with instruct models: the prompt that their template makes, and the answer among what is generated."""

from collections.abc import Sequence
from dataclasses import replace

from logosphere.data.tokenizers import encode_prompt
from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.runs.settings import SampleConfig
from logosphere.sampling.published import end_tokens, turn_end_tokens
from logosphere.types import TextTokenizer

GEN_LENGTH = 128
"""Tokens of an answer at most, unless --gen-length is given; the default of LLaDA's generate."""
SPECIAL = ("bos", "eos", "pad")


def apply_template(model: Model, tokenizer: TextTokenizer, config: SampleConfig) -> SampleConfig:
    """The settings with the conversation as a prompt, and with a length of the answer."""
    from logosphere.checkpoints.chat import make_messages, render_chat

    messages = make_messages(config.chat, config.system_message)
    template = ((model.spec and model.spec.checkpoint) or {}).get("chat_template")
    if not isinstance(template, str):
        raise UserError(
            "This model has no chat template, which instruct models have in their tokenizer_config.json or "
            "chat_template.jinja; continue a text with --prompt instead."
        )
    ids = {name: token for name in SPECIAL if (token := model.special_token(name)) is not None}
    texts = {name: tokenizer.decode([token]) for name, token in ids.items()}
    prompt = render_chat(template, messages, texts)
    given = int(encode_prompt(prompt, tokenizer, model.length).known.sum())
    decoding = config.decoding
    if decoding.gen_length is None and config.length is None:
        decoding = replace(decoding, gen_length=_find_length(model.length - given, decoding.block_length))
    return replace(config, chat=(), system_message="", prompt=prompt, decoding=decoding)


def _find_length(room: int, block: int | None) -> int:
    """The usual length of an answer, or what fits, in whole blocks if there are blocks."""
    length = min(GEN_LENGTH, room)
    return length if block is None else max(block, length // block * block)


def cut_answer(model: Model, tokens: Sequence[int], start: int) -> list[int]:
    """The tokens from `start` to the first that ends a text or a turn."""
    ends = {*end_tokens(model), *turn_end_tokens(model)}
    answer = list(tokens[start:])
    return answer[: next((i for i, token in enumerate(answer) if token in ends), len(answer))]
