"""Products of independent distributions of tokens, restricted to the language of an automaton.

For marginals p_l of L positions and an automaton with moves δ and accepting states F,

    q(x) = Π_l p_l(x_l) [δ(x) ∈ F] / Z,      Z = Σ_x Π_l p_l(x_l) [δ(x) ∈ F]
    β_L(s) = [s ∈ F],      β_l(s) = Σ_x p_l(x) β_{l+1}(δ(s, x)),      Z = β_0(start)
    α_0(s) = [s = start],  α_{l+1}(s') = Σ_{s, x: δ(s, x) = s'} α_l(s) p_l(x)

One backward pass gives exact samples (forward, x_l ∝ p_l(x) β_{l+1}(δ(s, x))) and, with α, the marginals
q_l(x) ∝ p_l(x) Σ_s α_l(s) β_{l+1}(δ(s, x)). Everything is in float64.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from logosphere.processes.base import MAX_LOGIT
from logosphere.rng import Noise, categorical, row_blocks
from logosphere.sampling.structured.token_automaton import TokenAutomaton
from logosphere.types import Bool, Float, Int64, Positions, Tokens

MIN_LOG_P = -80.0
"""Smaller log-probabilities count as this, so that a token is excluded by the automaton alone. A prediction of 0 is
used only where the language leaves no other."""
MIN_START = 1e-250
"""β of the start relative to the largest of any state, below which the passes are computed from logarithms: numbers of
float64 end at 1e-308."""


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

    # ---- the passes --------------------------------------------------------------------------------------------------

    @cached_property
    def weights(self) -> Float[Tensor, "B T U"]:
        """Σ p_l(x) over each group of tokens."""
        automaton = self.automaton
        known = automaton.members[automaton.token_class[self.tokens]]
        anything = (automaton.members.sum(0) > 0).to(known)
        weights = torch.where(self.open[..., None], anything, known) if bool(self.open.any()) else known
        if len(self.log_p):
            weights[self.predicted] = self._group_weights()
        return weights

    def _group_weights(self) -> Float[Tensor, "N U"]:
        automaton, found = self.automaton, []
        classes = automaton.members.shape[0]
        for rows in row_blocks(self.log_p):
            p = self.log_p[rows].clamp_min(MIN_LOG_P).exp_()
            by_class = p.new_zeros(classes, len(p)).index_add_(0, automaton.token_class, p.T.contiguous())
            found.append(by_class.T.double() @ automaton.members)
        return torch.cat(found)

    @cached_property
    def log_weights(self) -> Float[Tensor, "B T U"]:
        return self.weights.log()

    @cached_property
    def scaled(self) -> tuple[Float[Tensor, "T1 S B"], Float[Tensor, "T1 B"]] | None:
        """β_l divided by its largest entry, and the logarithm of what it was divided by; None where the numbers are
        too far apart."""
        beta, scale = self._scaled_backward()
        at_start = beta[0].gather(0, self.start[None])
        return None if bool((at_start < MIN_START).any()) else (beta, scale)

    @cached_property
    def log_beta(self) -> Float[Tensor, "T1 B S"]:
        """log β_l for l = 0 … T."""
        if self.scaled is None:
            return self._backward_of_logarithms()
        beta, scale = self.scaled
        return beta.log().transpose(1, 2) + scale[:, :, None]

    def _scaled_backward(self) -> tuple[Float[Tensor, "T1 S B"], Float[Tensor, "T1 B"]]:
        automaton, (batch, count) = self.automaton, self.tokens.shape
        before, group, after = automaton.edge
        weights = self.weights.permute(1, 2, 0).contiguous()
        beta = self.end.T.double().contiguous()
        scale = torch.zeros(batch, dtype=torch.float64, device=beta.device)
        found, scales, any_open = [beta], [scale], self.open.any(0).tolist()
        for position in reversed(range(count)):
            moves = weights[position].index_select(0, group).mul_(beta.index_select(0, after))
            beta = torch.zeros_like(beta).index_add_(0, before, moves)
            if any_open[position]:  # whether there is any continuation, not how many
                beta = torch.where(self.open[:, position], (beta > 0).to(beta), beta)
                scale = torch.where(self.open[:, position], 0.0, scale)
            largest = beta.amax(0).clamp_min(1e-300)
            beta, scale = beta / largest, scale + largest.log()
            found.append(beta)
            scales.append(scale)
        return torch.stack(found[::-1]), torch.stack(scales[::-1])

    def _backward_of_logarithms(self) -> Float[Tensor, "T1 B S"]:
        """The same for probabilities that differ by more than float64 holds."""
        automaton = self.automaton
        beta = torch.where(self.end, 0.0, -torch.inf).double()
        found = [beta]
        shape, group, target = (
            (len(beta), *automaton.group.shape),
            automaton.group.flatten(),
            automaton.target.flatten(),
        )
        for position in reversed(range(self.tokens.shape[1])):
            moves = self.log_weights[:, position].index_select(1, group) + beta.index_select(1, target)
            beta = moves.view(shape).logsumexp(-1)
            reachable = torch.where(beta > -torch.inf, 0.0, -torch.inf).to(beta)
            beta = torch.where(self.open[:, position, None], reachable, beta)
            found.append(beta)
        return torch.stack(found[::-1])

    @cached_property
    def log_alpha(self) -> Float[Tensor, "T B S"]:
        """log α_l for l = 0 … T - 1."""
        automaton, found = self.automaton, []
        alpha = torch.full_like(self.log_beta[0], -torch.inf).scatter(1, self.start[:, None], 0.0)
        before, group, after = automaton.edge
        for position in range(self.tokens.shape[1]):
            found.append(alpha)
            moves = alpha.index_select(1, before) + self.log_weights[:, position].index_select(1, group)
            top = moves.amax(1, keepdim=True).clamp_min(-1e300)
            alpha = torch.zeros_like(alpha).index_add_(1, after, (moves - top).exp_()).log_() + top
        return torch.stack(found)

    @property
    def log_z(self) -> Float[Tensor, " B"]:
        """log Z, -inf where no text of the language agrees with the known tokens."""
        if self.scaled is None:
            return self.log_beta[0].gather(1, self.start[:, None]).squeeze(1)
        beta, scale = self.scaled
        return beta[0].gather(0, self.start[None])[0].log() + scale[0]

    # ---- samples and marginals ---------------------------------------------------------------------------------------

    def sample_groups(self, noise: Noise) -> Int64[Tensor, "B T"]:
        """A draw of the group of each token. Given these, tokens are independent."""
        automaton, (batch, count) = self.automaton, self.tokens.shape
        u = noise.uniform(batch, count, 1).to(self.tokens.device)
        state, groups, width = self.start, [], automaton.group.shape[1]
        for position in range(count):
            group, target = automaton.group[state], automaton.target[state]
            cumulative = self._moves(position, group, target).cumsum(1)
            drawn = torch.searchsorted(cumulative, u[:, position] * cumulative[:, -1:], right=True).clamp_max(width - 1)
            groups.append(group.gather(1, drawn))
            state = target.gather(1, drawn).squeeze(1)
        return torch.cat(groups, 1) if groups else self.tokens

    def _moves(self, position: int, group: Int64[Tensor, "B D"], target: Int64[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Probabilities of the moves of a state, up to a factor."""
        if self.scaled is not None:
            beta = self.scaled[0][position + 1].T.gather(1, target)
            return self.weights[:, position].gather(1, group) * beta
        moves = self.log_weights[:, position].gather(1, group) + self.log_beta[position + 1].gather(1, target)
        return (moves - moves.amax(1, keepdim=True)).exp()

    def restrict_predictions(
        self, groups: Int64[Tensor, "B T"], rows: Tensor | slice = slice(None)
    ) -> Float[Tensor, "N V"]:
        """Predictions, some or all of the packed ones, given the groups of their tokens."""
        automaton = self.automaton
        allowed = (automaton.members.T > 0)[groups[self.predicted][rows]].index_select(1, automaton.token_class)
        return self.log_p[rows].clamp_min(MIN_LOG_P).masked_fill_(~allowed, -MAX_LOGIT)

    def sample(self, noise: Noise, groups: Int64[Tensor, "B T"] | None = None) -> Tokens:
        """One draw of all positions; known tokens are kept, and open positions get any token of the language."""
        automaton, drawn = self.automaton, self.tokens.clone()
        groups = self.sample_groups(noise) if groups is None else groups
        if len(self.log_p):
            u = noise.for_positions(self.predicted).uniform(len(self.log_p))
            parts = [categorical(self.restrict_predictions(groups, rows), u[rows]) for rows in row_blocks(self.log_p)]
            drawn[self.predicted] = torch.cat(parts)
        if bool(self.open.any()):
            allowed = automaton.members.T[groups[self.open]][:, automaton.token_class]
            drawn[self.open] = allowed.argmax(-1)
        return drawn

    def log_marginals(self) -> Float[Tensor, "N V"]:
        """log q_l(x) of the predicted positions, packed as the predictions are."""
        automaton = self.automaton
        if not len(self.log_p):
            return self.log_p
        before, group, after = automaton.edge
        alpha, beta = (field.transpose(0, 1)[self.predicted] for field in (self.log_alpha, self.log_beta[1:]))
        parts = []
        for rows in row_blocks(self.log_p):
            moves = alpha[rows].index_select(1, before) + beta[rows].index_select(1, after)
            moves = (moves - moves.amax(1, keepdim=True)).exp_()
            by_group = moves.new_zeros(len(moves), automaton.members.shape[1]).index_add_(1, group, moves)
            by_class = (by_group @ automaton.members.T).log_().to(self.log_p.dtype)
            p = self.log_p[rows].clamp_min(MIN_LOG_P)
            parts.append((p + by_class.index_select(1, automaton.token_class)).log_softmax(-1))
        return torch.cat(parts)
