"""Prompts and answers: pairs of texts, and conversations, as one sequence whose first part is known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from logosphere.data.corpus import Corpus, Examples
from logosphere.data.tokenizers import TokenIds, Tokenizer
from logosphere.errors import UserError

Messages = Sequence[Mapping[str, str]]
"""`role` and `content` of each; the last one is the answer."""
Render = Callable[[Sequence[Messages]], list[tuple[str, str]]]
"""Conversations, each as the text before the last answer, and that answer."""
MESSAGES = "messages"
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Prompting:
    """How a model reads prompts."""

    bos: int | None = None
    """The token before every text, where the model has one."""
    render: Render | None = None
    """Its chat template, where it has one."""


def find_conversation(row: Any, location: str, prompting: Prompting) -> Messages | None:
    """The messages of a row, which a chat template makes a prompt and an answer; None for rows of another kind."""
    if not isinstance(row, dict) or MESSAGES not in row:
        return None
    messages = row[MESSAGES]
    if not isinstance(messages, list) or not messages or not all(_is_message(one) for one in messages):
        raise UserError(
            f"{location} has messages that are no list of objects with a role ({', '.join(ROLES)}) and a content."
        )
    if messages[-1]["role"] != "assistant":
        raise UserError(f"{location} ends with a message of the {messages[-1]['role']}; the last one is the answer.")
    if prompting.render is None:
        raise UserError(
            f"{location} is a conversation, and this model has no chat template, which instruct models have in their "
            "tokenizer_config.json; give a source and a target in each row."
        )
    return messages


def _is_message(one: Any) -> bool:
    return isinstance(one, dict) and one.get("role") in ROLES and isinstance(one.get("content"), str)


def check_answer(answer: str, location: str) -> str:
    """Raise UserError for an answer without text."""
    if not answer.strip():
        raise UserError(f"{location} has an empty answer; write one, or remove the row.")
    return answer


def encode_prompted(
    prompts: Sequence[str], answers: Sequence[str], tokenizer: Tokenizer, prompting: Prompting
) -> tuple[list[TokenIds], "np.ndarray[Any, np.dtype[np.int64]]"]:
    """Sequences of prompt and answer, and the number of tokens that are known in each."""
    start = [] if prompting.bos is None else [prompting.bos]
    sequences: list[TokenIds] = []
    known = []
    for prompt, answer in zip(prompts, answers, strict=True):
        before = np.concatenate([np.array(start, dtype=np.int64), tokenizer.encode(prompt)])
        if len(before) > 1 and start and before[1] == start[0]:  # a template may write the token itself
            before = before[1:]
        sequences.append(np.concatenate([before, tokenizer.encode(answer)]))
        known.append(len(before))
    return sequences, np.array(known, dtype=np.int64)


def check_answers(corpus: Corpus, length: int) -> str:
    """Raise UserError for an answer that is longer than the sequences; a remark where prompts leave no room for it."""
    left_out, total = 0, 0
    for name in ("train", "valid", "test"):
        split = corpus.split(name)
        if not isinstance(split, Examples) or split.prompts is None:
            continue
        for number, (row, prompt) in enumerate(zip(split.sequences, split.prompts.tolist(), strict=True), start=1):
            if len(row) - prompt > length:
                raise UserError(
                    f"The answer of example {number} of the {name} split has {len(row) - prompt:,} tokens, more than a "
                    f"sequence (--length {length:,}); shorten it or give a larger --length."
                )
            left_out, total = left_out + (len(row) > length), total + 1
    return "" if not left_out else (
        f"{left_out:,} of {total:,} pairs have more than {length:,} tokens with their prompts and are left out."
    )  # fmt: skip
