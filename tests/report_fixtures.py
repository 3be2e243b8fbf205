"""A report of an evaluation, with every field set."""

from logosphere.evaluation.report import Report

REPORT = Report(
    name="a", kind="bound", unit="character", bits=1.5, error=0.01, recon=0.0, diffusion=1.5, prior=0.0, draws=2,
    sequences=3, tokens=18, length=6, seed=0, data="d valid", data_sha256="00", tokenizer="ff", weights="ema",
    seconds=1.0, nats=[1.0, 2.0, 3.0], counts=[6, 6, 6],
)  # fmt: skip
