"""The denoiser of a batch of requests: biases of each row, and how often each row was evaluated."""

from collections.abc import Sequence

import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.model import Model
from logosphere.networks.base import Denoiser, Wrapper
from logosphere.sampling.constraints import EXCLUDED
from logosphere.sampling.published import end_tokens
from logosphere.serving.rows import Row
from logosphere.types import Float, Int64, Logits, Positions, Rows, State, Times, Where


class RowDenoiser(Wrapper):
    """Adds to the logits of each row its own biases, and excludes end tokens where known text follows."""

    def __init__(
        self,
        inner: Denoiser,
        bias: Float[Tensor, "B V"] | None,
        excluded: tuple[Int64[Tensor, " E"], Positions] | None,
        counts: Int64[Tensor, " N"],
        numbers: Int64[Tensor, " B"],
    ):
        """`excluded` are tokens, and the positions of each row at which they are not drawn; `numbers` are the indices
        of the rows in `counts`, where their evaluations are counted."""
        super().__init__(inner)
        self.bias, self.excluded, self.counts, self.numbers = bias, excluded, counts, numbers

    @staticmethod
    def of(model: Model, rows: Sequence[Row]) -> "RowDenoiser":
        """The denoiser of a model for these rows."""
        if model.denoiser is None:
            raise UserError("This model has no denoiser; build it with one.")
        process, vocab_size = model.process, model.vocab_size
        scores_tokens = process.predicts_tokens and process.codec.num_classes == vocab_size
        ends = end_tokens(model) if scores_tokens else ()
        bias = excluded = None
        if any(row.biases for row in rows):
            bias = torch.zeros(len(rows), vocab_size)
            for number, row in enumerate(rows):
                for token, value in row.biases:
                    bias[number, token] = value
        if ends and any(row.text_until for row in rows):
            until = torch.tensor([row.text_until for row in rows])
            excluded = torch.tensor(ends), torch.arange(model.length) < until[:, None]
        counts = torch.zeros(len(rows), dtype=torch.long)
        return RowDenoiser(model.denoiser, bias, excluded, counts, torch.arange(len(rows)))

    def forward(self, z: State, t: Times, context: State, where: Where = None) -> Logits:
        self.counts[self.numbers] += 1
        out = self.inner(z, t, context, where)
        if self.bias is not None:
            out = out + _spread(self.bias[:, None].expand(-1, t.shape[1], -1), where).to(out)
        if self.excluded is not None:
            tokens, positions = self.excluded
            before = _spread(positions[:, : t.shape[1]], where).to(out.device)
            hidden = torch.zeros(out.shape[-1], dtype=torch.bool).index_fill(0, tokens, True).to(out.device)
            out = torch.where(before[..., None] & hidden, EXCLUDED, out)
        return out

    def rewrap(self, inner: Denoiser) -> Denoiser:
        return RowDenoiser(inner, self.bias, self.excluded, self.counts, self.numbers)

    def select_rows(self, kept: Rows) -> Denoiser:
        bias = None if self.bias is None else self.bias[kept.cpu()]
        excluded = None if self.excluded is None else (self.excluded[0], self.excluded[1][kept.cpu()])
        inner = self.inner.select_rows(kept)
        return RowDenoiser(inner, bias, excluded, self.counts, self.numbers[kept.cpu()]).train(self.training)


def _spread(field: Tensor, where: Where) -> Tensor:
    """The values of a field [B, L, …] at the positions of a prediction."""
    if where is None:
        return field
    return field[where.cpu()] if isinstance(where, Tensor) else field[tuple(index.cpu() for index in where)]
