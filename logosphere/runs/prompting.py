"""Fine-tuning on answers: which trainings have prompts, and how the model that they begin with reads them."""

from collections.abc import Sequence
from dataclasses import replace

from logosphere.checkpoints.chat import Message, render_chats
from logosphere.data.datasets import PAIRS
from logosphere.data.prompts import Messages, Prompting
from logosphere.data.tokenizers import Tokenizer
from logosphere.errors import UserError
from logosphere.model import Spec
from logosphere.runs.config import TrainConfig
from logosphere.runs.run import Run

ANSWERS = "answers"
SPECIAL = ("bos", "eos", "pad")


def with_answers(config: TrainConfig, parent: Run | None) -> TrainConfig:
    """The configuration with the task `answers` where pairs are read by a model without conditions."""
    pairs = config.data.startswith(f"{PAIRS}:") and config.task == "unconditional"
    if not pairs or parent is None or parent.conditions["source"]:
        return config
    return replace(config, task=ANSWERS)


def find_prompting(config: TrainConfig, parent: Run | None) -> Prompting | None:
    """How prompts are read, where the data of a training are prompts and answers."""
    if config.task != ANSWERS:
        return None
    return Prompting() if parent is None else prompting_of(parent.spec, parent.tokenizer)


def prompting_of(spec: Spec, tokenizer: Tokenizer) -> Prompting:
    """How a model reads prompts: its first token, and the chat template of its checkpoint."""
    template = (spec.checkpoint or {}).get("chat_template")
    if not isinstance(template, str):
        return Prompting(spec.special_token("bos"))
    ids = {name: token for name in SPECIAL if (token := spec.special_token(name)) is not None}
    special = {name: tokenizer.decode([token]) for name, token in ids.items()}

    def render(conversations: Sequence[Messages]) -> list[tuple[str, str]]:
        return split_conversations(template, conversations, special)

    return Prompting(spec.special_token("bos"), render)


def split_conversations(
    template: str, conversations: Sequence[Sequence[Message]], special: dict[str, str]
) -> list[tuple[str, str]]:
    """Of each conversation the text before its last answer, and the answer with what the template writes after it."""
    prompts = render_chats(template, [messages[:-1] for messages in conversations], special)
    wholes = render_chats(template, conversations, special, answering=False)
    for prompt, whole in zip(prompts, wholes, strict=True):
        if not whole.startswith(prompt):
            raise UserError(
                "The chat template writes an answer in another way than it asks for one, so prompt and answer of a "
                "conversation cannot be separated; give a source and a target in each row."
            )
    rows = zip(conversations, prompts, wholes, strict=True)
    return [
        (prompt, whole[len(prompt) :] if messages[-1]["content"].strip() else "") for messages, prompt, whole in rows
    ]
