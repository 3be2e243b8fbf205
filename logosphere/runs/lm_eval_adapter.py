"""Runs as models of the lm-evaluation-harness (extra 'eval').

    logosphere evaluate RUN --tasks …

or `lm_eval --model logosphere --model_args run=runs/mdlm-text8 --tasks …` after
`import logosphere.runs.lm_eval_adapter`. What a run answers is computed in runs/task_model.py.
"""

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from logosphere.runs.run import Run
from logosphere.runs.task_model import BATCH, DRAWS, TaskModel


@register_model("logosphere")
class Harness(LM):  # type: ignore[misc]
    """A run, or a model and its tokenizer, as a model of the harness."""

    def __init__(
        self,
        run: str | TaskModel,
        draws: int | str = DRAWS,
        steps: int | str = 64,
        seed: int | str = 0,
        batch_size: int | str = BATCH,
        max_batch_size: int | str | None = None,  # the harness always passes these two
        device: str | None = None,
    ):
        super().__init__()
        if not isinstance(run, TaskModel):
            size = int(batch_size or BATCH)
            run = TaskModel.of(Run(run), draws=int(draws), steps=int(steps), seed=int(seed), batch=size)
        self.task_model = run
        self.kind = self.task_model.kind

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """log p(continuation | context) in nats, and whether greedy decoding would generate it."""
        return self.task_model.score_continuations([request.args for request in requests])

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """log p(text), window by window; every token counts once."""
        return self.task_model.score_texts([request.args[0] for request in requests])

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Text after a prompt, up to the first stop."""
        return [self.task_model.continue_text(request.args[0], request.args[1]) for request in requests]
