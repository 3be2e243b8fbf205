"""Automata over the tokens of a vocabulary, with the tables of one forward and backward pass.

The moves of a state are grouped: `target[s, d]` is the d-th state that follows s, and `group[s, d]` the set of tokens
that lead there. Sets are shared by states, and tokens that lead to the same states from everywhere are one class, so
the weights of all moves are one product [N, classes] × [classes, groups], whatever the size of the vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from logosphere.errors import UserError
from logosphere.sampling.structured.automaton import ByteAutomaton, build_automaton, hash_rows
from logosphere.sampling.structured.pattern import Pattern
from logosphere.sampling.structured.pieces import Pieces
from logosphere.types import Bool, Float, Int64

MAX_TRANSITIONS = 1 << 26
"""States times tokens: 256 MB while an automaton is built."""


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """A deterministic automaton whose letters are tokens; state 0 is the start, and `states` is failure."""

    states: int
    accepting: Bool[Tensor, " S"]
    token_class: Int64[Tensor, " V"]
    """The class of each token; the last class fails everywhere."""
    next: Int64[Tensor, "S1 C1"]
    """The state after each state and class."""
    target: Int64[Tensor, "S D"]
    group: Int64[Tensor, "S D"]
    """Entries that are not used have the last group, which has no token."""
    edge: Int64[Tensor, "3 E"]
    """The same moves one after another: states before, groups, states after."""
    members: Float[Tensor, "C1 U1"]
    """Which classes belong to each group: 1 or 0, float64."""

    def to(self, device: torch.device) -> "TokenAutomaton":
        fields = (self.accepting, self.token_class, self.next, self.target, self.group, self.edge, self.members)
        return TokenAutomaton(self.states, *(field.to(device) for field in fields))

    def accepts(self, tokens: list[int]) -> bool:
        """Whether a row of tokens is in the language."""
        state = 0
        for token in tokens:
            state = int(self.next[state, self.token_class[token]])
        return state < self.states and bool(self.accepting[state])


def build_token_automaton(pattern: Pattern, pieces: Pieces, subject: str) -> TokenAutomaton:
    """The automaton of all rows of tokens that spell a text of the pattern, with ends of text after it.

    Every spelling of a text counts, not only the one that the tokenizer would choose.
    """
    automaton = build_automaton(pattern, pieces.bytes_used, subject)
    transitions = (automaton.states + 1) * len(pieces.later)
    if transitions > MAX_TRANSITIONS:
        raise UserError(
            f"{subject} needs an automaton of {automaton.states:,} states, {transitions:,} transitions for the "
            f"{len(pieces.later):,} tokens of this model, and the limit is {MAX_TRANSITIONS:,}; use fewer or shorter "
            "repetitions."
        )
    table = _step_tokens(automaton, pieces.later)
    first = table[:1] if pieces.first == pieces.later else _step_tokens(automaton, pieces.first, (0,))[:1]
    table = np.concatenate([first, table])  # the start is a state of its own: nothing leads back to it
    accepting = np.concatenate([automaton.accepting[:1], automaton.accepting])
    table = table + 1
    if pieces.end is not None:
        table, accepting = _add_ends(table, accepting, pieces.end)
    return _group_moves(*_trim(table, accepting))


def _step_tokens(
    automaton: ByteAutomaton, pieces: tuple[bytes, ...], starts: tuple[int, ...] | None = None
) -> npt.NDArray[np.int32]:
    """The state after each state and token, [S + 1, V]: all of them move by their n-th bytes at once."""
    count = automaton.states + 1
    rows = np.arange(count, dtype=np.int32) if starts is None else np.array(starts, dtype=np.int32)
    table = np.repeat(rows[:, None], len(pieces), 1)
    lengths = np.array([len(piece) for piece in pieces])
    for index in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > index)
        byte = np.array([pieces[token][index] for token in longer])
        table[:, longer] = automaton.next[table[:, longer], byte]
    table[:, lengths == 0] = automaton.failure  # tokens without text
    return table


def _add_ends(
    table: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_], end: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """One more state, of texts that have ended: after an end there are only further ends."""
    failure = len(table) - 1
    ended = failure
    table = np.where(table == failure, failure + 1, table)
    table = np.concatenate([table[:-1], np.full((2, table.shape[1]), failure + 1)]).astype(np.int32)
    accepting = np.concatenate([accepting[:-1], [True, False]])
    table[:, end] = np.where(accepting, ended, failure + 1)
    return table, accepting


def _trim(
    table: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """Without states that no row of tokens reaches, or from which none is accepted."""
    failure = len(table) - 1
    follows = [np.unique(row) for row in table[:-1]]
    reached, waiting = {0, failure}, [0]
    while waiting:
        for state in follows[waiting.pop()].tolist():
            if state not in reached:
                reached.add(state)
                waiting.append(state)
    alive, before = accepting.copy(), -1
    while alive.sum() != before:
        before = alive.sum()
        alive[:-1] |= np.array([bool(alive[states].any()) for states in follows])
    kept = np.array([state for state in range(failure) if state == 0 or (state in reached and alive[state])])
    numbers = np.full(len(table), len(kept), dtype=np.int32)
    numbers[kept] = np.arange(len(kept))
    numbers[~alive] = len(kept)
    return numbers[table[[*kept, failure]]], accepting[[*kept, failure]]


def _group_moves(table: npt.NDArray[np.int32], accepting: npt.NDArray[np.bool_]) -> TokenAutomaton:
    """The classes of tokens, and the moves of each state by the state that follows."""
    states = len(table) - 1
    _, example, token_class = np.unique(hash_rows(table), return_index=True, return_inverse=True)
    columns, token_class = table[:, example], token_class.reshape(-1)
    dead = (columns == states).all(0)
    order = np.argsort(dead, kind="stable")
    classes = int((~dead).sum())
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    columns = np.concatenate([columns[:, order[:classes]], np.full((states + 1, 1), states)], 1)
    token_class = np.minimum(position[token_class], classes)
    groups: dict[bytes, int] = {}
    sets: list[npt.NDArray[np.bool_]] = []
    moves: list[list[tuple[int, int]]] = []
    for row in columns[:states]:
        found = []
        for target in np.unique(row[:classes]).tolist():
            if target == states:
                continue
            members = row == target
            key = members.tobytes()
            if key not in groups:
                groups[key] = len(sets)
                sets.append(members)
            found.append((target, groups[key]))
        moves.append(found)
    width = max(1, max(map(len, moves), default=1))
    target = np.zeros((states, width), dtype=np.int64)
    group = np.full((states, width), len(sets), dtype=np.int64)
    edges = [(state, number, following) for state, found in enumerate(moves) for following, number in found]
    for state, found in enumerate(moves):
        for index, (following, number) in enumerate(found):
            target[state, index], group[state, index] = following, number
    members = np.stack([*sets, np.zeros(classes + 1, dtype=bool)], 1)
    return TokenAutomaton(
        states,
        torch.from_numpy(accepting[:states].copy()),
        torch.from_numpy(token_class.astype(np.int64)),
        torch.from_numpy(columns.astype(np.int64)),
        torch.from_numpy(target),
        torch.from_numpy(group),
        torch.tensor(edges, dtype=torch.long).view(-1, 3).T.contiguous(),
        torch.from_numpy(members.astype(np.float64)),
    )
