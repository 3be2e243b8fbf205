"""The cheapest one-to-one assignment, solved exactly: optimal transport between two clouds of as many points each."""

import numpy as np
import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.types import Float, Int64


def assigned(cost: Float[Tensor, "n m"]) -> Int64[Tensor, " n"]:
    """The columns of rows 0 … n-1 for which Σ cost[row, column] is smallest.

    Shortest augmenting paths (Jonker and Volgenant 1987): rows are added one by one, each by the cheapest chain of
    exchanges under prices of columns that keep all reduced costs from becoming negative. O(n³), n² of it vectorised.
    """
    if cost.dim() != 2 or cost.shape[0] != cost.shape[1] or not bool(cost.isfinite().all()):
        raise UserError("An assignment needs a square table of finite costs.")
    table, n = cost.detach().double().cpu().numpy(), len(cost)
    owner = np.full(n, -1)  # the row that has each column
    row_price, column_price = np.zeros(n), np.zeros(n)
    for start in range(n):
        shortest, before = np.full(n, np.inf), np.full(n, start)
        reached, row, distance = np.zeros(n, bool), start, 0.0
        while True:
            reduced = distance + table[row] - row_price[row] - column_price
            better = ~reached & (reduced < shortest)
            shortest[better], before[better] = reduced[better], row
            column = int(np.where(reached, np.inf, shortest).argmin())
            distance, reached[column] = shortest[column], True
            if owner[column] < 0:
                break
            row = int(owner[column])
        done = reached.copy()
        done[column] = False
        row_price[start] += distance
        row_price[owner[done]] += distance - shortest[done]
        column_price[done] -= distance - shortest[done]
        _exchange(owner, before, column, start)
    columns = np.empty(n, dtype=np.int64)
    columns[owner] = np.arange(n)
    return torch.from_numpy(columns).to(cost.device)


def _exchange(owner: np.ndarray, before: np.ndarray, column: int, start: int) -> None:
    """Along the chain that ends at a free column every row takes the next one."""
    column_of = {int(row): column for column, row in enumerate(owner) if row >= 0}
    while True:
        row = int(before[column])
        owner[column] = row
        if row == start:
            return
        column = column_of[row]
