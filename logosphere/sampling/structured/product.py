"""Products of independent distributions of tokens, restricted to the language of an automaton.

For marginals p_l of L positions and an automaton with moves δ and accepting states F,

    q(x) = Π_l p_l(x_l) [δ(x) ∈ F] / Z,      Z = Σ_x Π_l p_l(x_l) [δ(x) ∈ F]
    β_L(s) = [s ∈ F],      β_l(s) = Σ_x p_l(x) β_{l+1}(δ(s, x)),      Z = β_0(start)
    α_0(s) = [s = start],  α_{l+1}(s') = Σ_{s, x: δ(s, x) = s'} α_l(s) p_l(x)

One backward pass gives exact samples (forward, x_l ∝ p_l(x) β_{l+1}(δ(s, x))) and, with α, the marginals
q_l(x) ∝ p_l(x) Σ_s α_l(s) β_{l+1}(δ(s, x)). Everything is in log-space and float64.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from logosphere.rng import Noise, categorical, row_blocks
from logosphere.sampling.structured.token_automaton import TokenAutomaton
from logosphere.types import Bool, Float, Int64, Positions, Tokens

MIN_LOG_P = -700.0
"""Smaller log-probabilities count as this, so that a token is excluded by the automaton alone. A prediction of 0 is
used only where the language leaves no other."""


@dataclass(frozen=True, eq=False)
class RestrictedProduct:
    """The distribution of the tokens at T positions, given the language."""

    automaton: TokenAutomaton
    predicted: Positions
    """[B, T]: positions with a prediction; the others are known or open."""
    log_p: Float[Tensor, "N V"]
    """The predictions, packed."""
    tokens: Tokens
    """[B, T]: the tokens of known positions."""
    open: Positions
    """[B, T]: positions without any prediction, such as those of later blocks, of which only matters that some token
    exists."""
    start: Int64[Tensor, " B"]
    """The state before the first position."""
    end: Bool[Tensor, "B S"]
    """The states that are accepted after the last position."""

    @cached_property
    def log_weights(self) -> Float[Tensor, "B T U"]:
        """log Σ p_l(x) over each group of tokens."""
        automaton = self.automaton
        known = automaton.members[automaton.token_class[self.tokens]]
        anything = (automaton.members.sum(0) > 0).to(known)
        weights = torch.where(self.open[..., None], anything, known)
        if len(self.log_p):
            weights = weights.masked_scatter(self.predicted[..., None], self._group_weights())
        return weights.log()

    def _group_weights(self) -> Float[Tensor, "N U"]:
        automaton, found = self.automaton, []
        classes = automaton.members.shape[0]
        for rows in row_blocks(self.log_p):
            p = self.log_p[rows].double().clamp_min(MIN_LOG_P).exp()
            by_class = p.new_zeros(classes, len(p)).index_add_(0, automaton.token_class, p.T.contiguous())
            found.append(by_class.T @ automaton.members)
        return torch.cat(found)

    @cached_property
    def backward(self) -> list[Float[Tensor, "B S"]]:
        """log β_l for l = 0 … T."""
        automaton = self.automaton
        beta = torch.where(self.end, 0.0, -torch.inf).double()
        found, any_open = [beta], self.open.any(0).tolist()
        shape, group, target = (len(beta), *automaton.group.shape), automaton.group.flatten(), automaton.target.flatten()
        for position in reversed(range(self.tokens.shape[1])):
            moves = self.log_weights[:, position].index_select(1, group) + beta.index_select(1, target)
            beta = moves.view(shape).logsumexp(-1)
            if any_open[position]:  # whether there is any continuation, not how many
                reachable = torch.where(beta > -torch.inf, 0.0, -torch.inf).to(beta)
                beta = torch.where(self.open[:, position, None], reachable, beta)
            found.append(beta)
        return found[::-1]

    @property
    def log_z(self) -> Float[Tensor, " B"]:
        """log Z, -inf where no text of the language agrees with the known tokens."""
        return self.backward[0].gather(1, self.start[:, None]).squeeze(1)

    def sample(self, noise: Noise) -> Tokens:
        """One draw of all positions; known tokens are kept, and open positions get any token of the language."""
        automaton, (batch, count) = self.automaton, self.tokens.shape
        u = noise.uniform(batch, count)
        rows, state, groups = torch.arange(batch, device=self.tokens.device), self.start, []
        for position in range(count):
            group, target = automaton.group[state], automaton.target[state]
            moves = self.log_weights[:, position].gather(1, group) + self.backward[position + 1].gather(1, target)
            drawn = categorical(moves, u[:, position])
            groups.append(group[rows, drawn])
            state = target[rows, drawn]
        return self._tokens_of(torch.stack(groups, 1) if groups else self.tokens, noise)

    def _tokens_of(self, groups: Int64[Tensor, "B T"], noise: Noise) -> Tokens:
        """A token of each group by its probability."""
        automaton, drawn = self.automaton, self.tokens.clone()
        log_members = automaton.members.T.log()
        if len(self.log_p):
            u = noise.for_positions(self.predicted).uniform(len(self.log_p))
            wanted, parts = groups[self.predicted], []
            for rows in row_blocks(self.log_p):
                allowed = log_members[wanted[rows]][:, automaton.token_class]
                parts.append(categorical(self.log_p[rows].double().clamp_min(MIN_LOG_P) + allowed, u[rows]))
            drawn[self.predicted] = torch.cat(parts)
        if bool(self.open.any()):
            allowed = log_members[groups[self.open]][:, automaton.token_class]
            drawn[self.open] = allowed.argmax(-1)
        return drawn

    @cached_property
    def forward(self) -> list[Float[Tensor, "B S"]]:
        """log α_l for l = 0 … T - 1."""
        automaton = self.automaton
        alpha = torch.full_like(self.backward[0], -torch.inf).scatter(1, self.start[:, None], 0.0)
        found, target = [], automaton.target.flatten().expand(len(alpha), -1)
        group = automaton.group.flatten()
        for position in range(self.tokens.shape[1]):
            found.append(alpha)
            moves = self.log_weights[:, position].index_select(1, group).view(len(alpha), *automaton.group.shape)
            moves = (moves + alpha[..., None]).flatten(1)
            top = moves.amax(1, keepdim=True).clamp_min(-1e300)
            alpha = torch.zeros_like(alpha).scatter_add(1, target, (moves - top).exp()).log() + top
        return found

    def log_marginals(self) -> Float[Tensor, "N V"]:
        """log q_l(x) of the predicted positions, packed as the predictions are."""
        automaton = self.automaton
        if not len(self.log_p):
            return self.log_p
        group, target = automaton.group.flatten(), automaton.target.flatten()
        alpha, beta = torch.stack(self.forward, 1)[self.predicted], torch.stack(self.backward[1:], 1)[self.predicted]
        parts = []
        for rows in row_blocks(self.log_p):
            moves = alpha[rows].repeat_interleave(automaton.group.shape[1], 1) + beta[rows].index_select(1, target)
            moves = (moves - moves.amax(1, keepdim=True)).exp()
            by_group = moves.new_zeros(len(moves), automaton.members.shape[1]).index_add_(1, group, moves)
            by_class = (by_group @ automaton.members.T).log()
            p = self.log_p[rows].double().clamp_min(MIN_LOG_P)
            parts.append((p + by_class[:, automaton.token_class]).log_softmax(-1))
        return torch.cat(parts).to(self.log_p.dtype)
