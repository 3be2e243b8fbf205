"""The cards of all systems, family by family. Nothing here knows torch, so that listing systems is instant."""

from logosphere.cards import autoregressive, discrete, flows, gaussian, latent, remasking, sphere
from logosphere.cards.card import Card

CARDS: list[Card] = [
    *autoregressive.CARDS,
    *discrete.CARDS,
    *remasking.CARDS,
    *sphere.CARDS,
    *gaussian.CARDS,
    *flows.CARDS,
    *latent.CARDS,
]

__all__ = ["CARDS", "Card"]
