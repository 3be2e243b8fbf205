"""Logosphere: train, measure, compare and sample diffusion language models behind one interface."""

from importlib import import_module
from typing import Any

from logosphere.errors import UserError
from logosphere.systems import build, options, presets, system, systems

__version__ = "0.1.0"

_LAZY = {
    "languages": "logosphere.data.languages",
    "steppers": "logosphere.sampling.steppers",
    "keep_freed_memory": "logosphere.allocator:keep_freed_memory",
    "Batch": "logosphere.types:Batch",
    "Bound": "logosphere.types:Bound",
    "Condition": "logosphere.types:Condition",
    "Model": "logosphere.model:Model",
    "Denoiser": "logosphere.networks.base:Denoiser",
    "wrap": "logosphere.networks.own:wrap",
    "NetworkConfig": "logosphere.networks.config:NetworkConfig",
    "NetworkShape": "logosphere.networks.registry:NetworkShape",
    "register_network": "logosphere.networks.registry:register_network",
    "SystemInfo": "logosphere.systems.registry:SystemInfo",
    "register_system": "logosphere.systems.registry:register",
    "save_autoencoder": "logosphere.training.stages:save_autoencoder",
    "load_autoencoder": "logosphere.training.stages:load_autoencoder",
    "interpolate": "logosphere.sampling.interpolation:interpolate",
    "TimeGrid": "logosphere.sampling.loop:TimeGrid",
    "Plan": "logosphere.sampling.loop:TimeGrid",  # its former name
    "sample_loop": "logosphere.sampling.loop:sample_loop",
    "walk": "logosphere.sampling.loop:sample_loop",  # its former name
    "Frame": "logosphere.sampling.loop:Frame",
    "Sampler": "logosphere.sampling.sampler:Sampler",
    "sampler": "logosphere.sampling.registry:sampler",
    "samplers": "logosphere.sampling.registry:samplers",
    "register_sampler": "logosphere.sampling.registry:register_sampler",
    "sample": "logosphere.sampling.generate:sample",
    "generate": "logosphere.sampling.generate:generate",
    "generate_text": "logosphere.runs.sample:generate_text",
    "GradientGuided": "logosphere.networks.guidance:GradientGuided",
    "Steered": "logosphere.networks.guidance:GradientGuided",  # its former name
    "GradientGuidedState": "logosphere.networks.guidance:GradientGuidedState",
    "SteeredState": "logosphere.networks.guidance:GradientGuidedState",  # its former name
    "generate_long": "logosphere.sampling.constraints:generate_long",
    "slide": "logosphere.sampling.constraints:generate_long",  # its former name
    "with_length": "logosphere.sampling.constraints:with_length",
    "of_length": "logosphere.sampling.constraints:with_length",  # its former name
    "constrain": "logosphere.sampling.structured.constraint:constrain",
    "Constraint": "logosphere.sampling.structured.constraint:Constraint",
    "fit": "logosphere.training.fit:fit",
    "OptimizerConfig": "logosphere.training.optimizer:OptimizerConfig",
    "Optim": "logosphere.training.optimizer:OptimizerConfig",  # its former name
    "Run": "logosphere.runs.run:Run",
    "TrainConfig": "logosphere.runs.config:TrainConfig",
    "recipe": "logosphere.runs.recipes:recipe",
    "train": "logosphere.runs.train:train",
    "resume": "logosphere.runs.train:resume",
    "adapt": "logosphere.runs.adapt:adapt",
    "AdaptConfig": "logosphere.runs.adaptation:AdaptConfig",
    "EvaluateConfig": "logosphere.runs.settings:EvaluateConfig",
    "evaluate_run": "logosphere.runs.evaluate:evaluate_run",
    "SampleConfig": "logosphere.runs.settings:SampleConfig",
    "sample_run": "logosphere.runs.sample:sample_run",
    "CompareConfig": "logosphere.runs.compare:CompareConfig",
    "compare_runs": "logosphere.runs.compare:compare_runs",
    "export_run": "logosphere.runs.evaluate:export_run",
    "DiscreteClassifierGuidance": "logosphere.sampling.guidance:DiscreteClassifierGuidance",
    "Edits": "logosphere.sampling.guidance:DiscreteClassifierGuidance",  # its former name
    "Gradients": "logosphere.sampling.guidance:Gradients",
    "ClassifierCheckpoint": "logosphere.sampling.classifier_checkpoint:ClassifierCheckpoint",
    "Labeller": "logosphere.sampling.classifier_checkpoint:ClassifierCheckpoint",  # its former name
    "NoisyClassifier": "logosphere.networks.classifier:NoisyClassifier",
    "train_classifier": "logosphere.training.auxiliary:train_classifier",
    "train_remasker": "logosphere.training.auxiliary:train_remasker",
    "with_remasker": "logosphere.systems.remasking:with_remasker",
    "ode_nelbo": "logosphere.evaluation.ode_likelihood:ode_nelbo",
    "evaluate": "logosphere.evaluation.report:evaluate",
    "Report": "logosphere.evaluation.report:Report",
    "compare": "logosphere.evaluation.leaderboard:compare",
    "load": "logosphere.pretrained:load",
    "import_model": "logosphere.runs.import_checkpoint:import_model",
    "import_checkpoint": "logosphere.runs.import_checkpoint:import_checkpoint",
    "ImportConfig": "logosphere.runs.settings:ImportConfig",
    "open_corpus": "logosphere.data.corpora:open_corpus",
    "make_tokenizer": "logosphere.data.tokenizer_registry:make_tokenizer",
    "Crops": "logosphere.data.batches:Crops",
    "windows": "logosphere.data.batches:windows",
}
"""Public names that need torch; they are imported when first used, so that `logosphere --help` is instant."""

__all__ = ["UserError", "__version__", "build", "options", "presets", "system", "systems", *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'logosphere' has no attribute '{name}'")
    module, _, attribute = _LAZY[name].partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted(__all__)
