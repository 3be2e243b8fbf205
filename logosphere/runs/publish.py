"""Publishing a run on the hub: what is uploaded is put together in a temporary folder, shown, and uploaded at once.

Uploaded are the weights, recipe.json, the tokenizer and a card; no text, no metrics, no state of the training, and no
folders of this machine in names. ls.load("hf:OWNER/NAME") reads the result.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from logosphere.checkpoints.hub import CARD, HUB_PREFIX, LOG_IN, parse_source, shorten_reason
from logosphere.errors import UserError
from logosphere.io import (
    RECIPE,
    REMASKER,
    TOKENIZER,
    WEIGHTS,
    check_sha256,
    file_sha256,
    hash_files,
    write_atomic,
    write_recipe,
    write_tensors,
)
from logosphere.model import Model
from logosphere.networks.published.lora import merged_state
from logosphere.pretrained import load, read_spec
from logosphere.pretrained.hashes import check_file, find_weights
from logosphere.runs.model_card import check_licence, find_reports, make_card, public_name, public_records
from logosphere.runs.run import Run
from logosphere.runs.sample import generate_text
from logosphere.runs.settings import SILENT, Display
from logosphere.untrusted import read_regular


@dataclass(frozen=True)
class Publication:
    """What is uploaded to a repository."""

    repository: str
    folder: Path
    files: dict[str, int]
    """Bytes of each file."""
    card: str
    weights_sha256: str
    remarks: tuple[str, ...] = ()
    address: str = ""
    """Of the commit, after it was uploaded."""

    def summary(self) -> dict[str, Any]:
        """All fields but the temporary folder."""
        return {name: value for name, value in vars(self).items() if name != "folder"}


@dataclass(frozen=True)
class CardConfig:
    """What the card of a published model says beyond what the run has recorded."""

    licence: str | None = None
    """Short name of the licence, such as mit; not stated unless given."""
    samples: int = 0
    """Texts to sample for the card. They may repeat passages of the training text."""
    steps: int = 128
    """Steps to sample them with."""


@contextmanager
def stage(
    run: Run, target: str, config: CardConfig | None = None, weights: str = "ema", display: Display = SILENT
) -> Iterator[Publication]:
    """What would be uploaded, in a folder that exists within the context."""
    config = config or CardConfig()
    check_licence(config.licence)
    repository = parse_target(target)
    file, sha256 = find_weights(run.path, run.weights_file(weights).name)
    check_sha256(file, sha256, file_sha256(file))
    for name in (REMASKER, TOKENIZER):
        if (run.path / name).exists():
            check_file(run.path, name)
    measured = find_reports(run, weights)
    with TemporaryDirectory(prefix="logosphere-publish-") as temporary:
        folder = Path(temporary)
        if run.spec.adapters is None:
            _place(file, folder / WEIGHTS)
        else:
            write_tensors(folder / WEIGHTS, merged_state(run.model(weights)))
        if (run.path / REMASKER).exists():
            _place(run.path / REMASKER, folder / REMASKER)
        if (run.path / TOKENIZER).exists():
            (folder / TOKENIZER).write_bytes(read_regular(run.path / TOKENIZER, inside=run.path))
        write_recipe(folder / RECIPE, public_recipe(run) | hash_files(folder, WEIGHTS, REMASKER, TOKENIZER))
        read_spec(folder)
        texts = _sample(folder, config, display)
        digest = file_sha256(folder / WEIGHTS)
        page = make_card(run, repository, measured, texts, licence=config.licence, sha256=digest)
        write_atomic(folder / CARD, page.encode())
        remark = run.missing_average(weights)
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        remarks = (*([remark] if remark else []), *measured.remarks)
        yield Publication(repository, folder, sizes, page, digest, remarks)


def parse_target(target: str) -> str:
    """OWNER/NAME of hf:OWNER/NAME."""
    source = parse_source(target)
    if source.file is not None or source.revision is not None:
        raise UserError(f"A model is published as {HUB_PREFIX}OWNER/NAME, without a file or a revision, not {target}.")
    return source.repository


def public_recipe(run: Run) -> dict[str, Any]:
    """The content of recipe.json without the folders of this machine."""
    content: dict[str, Any] = {
        key: run.content[key] for key in ("model", "recipe", "corpus", "plugins") if key in run.content
    }
    content["model"] = {name: part for name, part in content["model"].items() if name != "adapters"}
    if trainings := public_records(run.trainings):
        content["trainings"] = [asdict(one) for one in trainings]
    for part, names in {"recipe": ("data", "tokenizer", "begin"), "corpus": ("name",)}.items():
        if isinstance(content.get(part), dict):
            found = {name: content[part].get(name) for name in names}
            changed = {name: public_name(value) for name, value in found.items() if isinstance(value, str)}
            content[part] = content[part] | changed
    checkpoint = content["model"].get("checkpoint")
    if isinstance(checkpoint, dict) and isinstance(checkpoint.get("source"), str):
        checkpoint = checkpoint | {"source": public_name(checkpoint["source"])}
        content["model"] = content["model"] | {"checkpoint": checkpoint}
    return content


def _place(file: Path, place: Path) -> None:
    """A file in the temporary folder, as a link where the system has links: weights may be large."""
    try:
        os.symlink(file.resolve(), place)
    except OSError:
        shutil.copyfile(file, place)


def _sample(folder: Path, config: CardConfig, display: Display) -> list[str]:
    if config.samples < 0 or config.steps < 1:
        raise UserError("The number of samples must be at least 0 and that of their steps at least 1.")
    if not config.samples:
        return []
    model = load(folder)
    if model.tokenizer is None:
        raise UserError("This model has no tokenizer, so it has no texts for the card; leave out the samples.")
    display.log(f"Sampling {config.samples} texts for the card.")
    return generate_text(model, n=config.samples, steps=config.steps, rng=0)


def upload(publication: Publication, *, private: bool = False) -> Publication:
    """Upload to the hub; the repository is made where it does not exist, and gets one commit."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    if not get_token():
        raise UserError(f"Nothing was uploaded, because there is no token of the hub: {LOG_IN}.")
    api, name = HfApi(), publication.repository
    try:
        api.create_repo(name, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name, folder_path=publication.folder, commit_message="Upload a model of Logosphere"
        )
    except HfHubHTTPError as problem:
        status = problem.response.status_code if problem.response is not None else 0
        if status in (401, 403):
            raise UserError(
                f"The hub refuses to write to {name}: use a token that may write to it ({LOG_IN}), or another name."
            ) from None
        raise UserError(f"{name} could not be uploaded ({shorten_reason(problem)}); try again later.") from None
    except OSError as problem:
        raise UserError(f"{name} could not be uploaded ({shorten_reason(problem)}); try again later.") from None
    except Exception as problem:  # of several network libraries
        raise UserError(f"The hub cannot be reached ({shorten_reason(problem)}); try again with a network.") from None
    return replace(publication, address=str(commit.commit_url))


def publish_run(
    run: Run | str | Path,
    target: str,
    config: CardConfig | None = None,
    *,
    weights: str = "ema",
    private: bool = False,
    dry_run: bool = False,
    display: Display = SILENT,
) -> Publication:
    """Publish a run as hf:OWNER/NAME; with `dry_run` only what would be uploaded."""
    run = run if isinstance(run, Run) else Run(run, trained=False)
    with stage(run, target, config, weights, display) as publication:
        return publication if dry_run else upload(publication, private=private)


def push_model(
    model: Model, target: str, config: CardConfig | None = None, *, private: bool = False, dry_run: bool = False
) -> Publication:
    """Publish a model in memory as hf:OWNER/NAME."""
    parse_target(target)
    with TemporaryDirectory(prefix="logosphere-model-") as folder:
        model.save(folder)
        return publish_run(folder, target, config, private=private, dry_run=dry_run)
