"""Models of the hub: hf:OWNER/NAME, at the revision of hf:OWNER/NAME@REVISION, or one GGUF file of a repository.

Only files that can hold no code are fetched: weights as safetensors or GGUF, configurations, tokenizers, the card.
Files are kept in the cache of huggingface_hub, so a download that was stopped continues with the next file, and without
a network that cache is used; a broken connection is resumed within a file.
"""

import re
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from glob import escape
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from logosphere.checkpoints.files import CONFIG, CONVERT, INDEX, PICKLES
from logosphere.errors import UserError, plural, shorten
from logosphere.io import EMA_WEIGHTS, RECIPE, REMASKER, TOKENIZER, WEIGHTS

HUB_PREFIX = "hf:"
CARD = "README.md"
CHECKPOINT_FILES = (
    CONFIG, "*.safetensors", INDEX, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "generation_config.json", "chat_template.jinja", CARD,
)  # fmt: skip
RUN_FILES = (RECIPE, WEIGHTS, EMA_WEIGHTS, REMASKER, TOKENIZER, CARD)
FOLDERS = "*/*"
"""Pattern of files in folders of a repository, which are not fetched."""
PART = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
NAME = re.compile(rf"{PART}/{PART}")
REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*")
LOG_IN = "log in with: hf auth login, or set HF_TOKEN"
"""How a sentence continues for those who have no token."""

Report = Callable[[str], None]
"""Takes remarks for the user."""


class Fetched(NamedTuple):
    """A local copy of a repository, or of a file of it."""

    path: Path
    commit: str
    """The commit that the revision was resolved to."""


def warn(remark: str) -> None:
    """Show a remark to a user of the library."""
    warnings.warn(remark, stacklevel=3)


@dataclass(frozen=True)
class HubSource:
    """What `hf:OWNER/NAME[/FILE.gguf][@REVISION]` names."""

    repository: str
    file: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        file = f"/{self.file}" if self.file else ""
        return f"{HUB_PREFIX}{self.repository}{file}{f'@{self.revision}' if self.revision else ''}"


def is_hub(source: object) -> bool:
    """Whether a source names a model of the hub."""
    return str(source).startswith(HUB_PREFIX)


def parse_source(source: str, revision: str | None = None) -> HubSource:
    """The repository, file and revision of a name; raises UserError for a name that the hub cannot have."""
    whole, _, after = source.removeprefix(HUB_PREFIX).partition("@")
    owner, _, rest = whole.partition("/")
    name, _, file = rest.partition("/")
    revision = revision or after or None
    repository = f"{owner}/{name}"
    if (
        not NAME.fullmatch(repository)
        or repository.endswith((".git", "."))
        or any(word in repository for word in ("--", ".."))
        or (revision is None and "@" in source)
    ):
        raise UserError(
            f"{shorten(source)} names no model of the hub; write {HUB_PREFIX}OWNER/NAME or "
            f"{HUB_PREFIX}OWNER/NAME@REVISION, such as {HUB_PREFIX}kuleshov-group/mdlm-owt."
        )
    if revision is not None and (not REVISION.fullmatch(revision) or ".." in revision):
        raise UserError(f"A revision is a branch, a tag or a commit, not {shorten(revision)}.")
    if file and (not file.endswith(".gguf") or ".." in file or "\\" in file or file.startswith("/")):
        raise UserError(f"Of the files of a repository only one with the ending .gguf can be named, not {file}.")
    return HubSource(repository, file or None, revision)


def fetch(source: str, revision: str | None = None, report: Report = warn) -> Fetched:
    """Fetch a published checkpoint: the folder with its files, or the GGUF file that was named; and its commit."""
    wanted = parse_source(source, revision)
    if wanted.file is None:
        patterns = _Patterns(CHECKPOINT_FILES, (FOLDERS,), lambda names: check_importable(str(wanted), names))
        folder = _download(wanted, patterns, report)
        return Fetched(folder, folder.name)
    patterns = _Patterns((escape(wanted.file),), (), lambda names: _check_file(wanted, names))
    folder = _download(wanted, patterns, report)
    if not (folder / wanted.file).is_file():
        raise UserError(f"The copy of {wanted} in the cache has no {wanted.file}; fetch it with a network.")
    return Fetched(folder / wanted.file, folder.name)


def fetch_run(source: str, revision: str | None = None, report: Report = warn) -> Fetched:
    """Fetch a model that `logosphere publish` or Model.push_to_hub has uploaded."""
    wanted = parse_source(source, revision)
    if wanted.file is not None:
        raise UserError(f"{wanted} is a GGUF file, to be imported: logosphere import {wanted} --out RUN")
    patterns = _Patterns(RUN_FILES, (FOLDERS,), lambda names: check_run(str(wanted), names))
    folder = _download(wanted, patterns, report)
    check_run(str(wanted), [path.name for path in folder.iterdir()])  # of a copy in the cache no names were known
    return Fetched(folder, folder.name)


class ForeignCheckpoint(UserError):
    """A repository holds a checkpoint of another package."""


def check_run(source: str, names: Collection[str]) -> None:
    """Raise UserError for a repository that holds no model of the package."""
    if RECIPE in names:
        return
    published = CONFIG in names or any(name.endswith((".safetensors", ".gguf")) for name in names)
    if published:
        raise ForeignCheckpoint(
            f"{source} has no {RECIPE}: it is a checkpoint of another package; import it first with: "
            f"logosphere import {source} --out RUN"
        )
    raise UserError(f"{source} holds no model: it has neither {RECIPE} nor {CONFIG} with weights.")


def check_importable(source: str, names: Collection[str]) -> None:
    """Raise UserError for a repository without weights that can be read, before anything is downloaded."""
    top = [name for name in names if "/" not in name]
    if any(name.endswith(".safetensors") for name in top):
        return
    if ggufs := sorted(name for name in names if name.endswith(".gguf")):
        raise UserError(
            f"{source} has {plural(len(ggufs), 'GGUF file')} and no safetensors; name the file: {source}/{ggufs[0]}"
        )
    if pickles := sorted(name for name in top if PurePosixPath(name).suffix in PICKLES):
        raise UserError(f"{source} has its weights only as {pickles[0]}: {CONVERT}.")
    raise UserError(f"{source} has no weights: no safetensors and no .gguf file.")


def _check_file(wanted: HubSource, names: Collection[str]) -> None:
    if wanted.file in names:
        return
    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    there = f"it has {', '.join(ggufs[:3])}" if ggufs else "it has no GGUF file"
    raise UserError(f"{HUB_PREFIX}{wanted.repository} has no file {wanted.file}; {there}.")


@dataclass(frozen=True)
class _Patterns:
    """Which files of a repository are wanted."""

    allow: tuple[str, ...]
    ignore: tuple[str, ...]
    check: Callable[[Collection[str]], None]
    """Raises for the names of the files of a repository that has not what is wanted, before anything is fetched."""


def fetch_files(
    wanted: HubSource,
    allow: tuple[str, ...],
    ignore: tuple[str, ...],
    check: Callable[[Collection[str]], None],
    report: Report = warn,
) -> Path:
    """Fetch the files of a repository that match patterns; `check` raises for the names of all its files."""
    return _download(wanted, _Patterns(allow, ignore, check), report)


def _download(wanted: HubSource, patterns: _Patterns, report: Report) -> Path:
    """The folder with the wanted files of a repository."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    name = wanted.repository
    download = partial(
        snapshot_download, name, revision=wanted.revision, allow_patterns=list(patterns.allow),
        ignore_patterns=list(patterns.ignore),
    )  # fmt: skip
    try:
        information = HfApi().model_info(name, revision=wanted.revision)
        patterns.check([file.rfilename for file in information.siblings or []])
        return Path(download())
    except UserError:
        raise
    except RevisionNotFoundError:
        raise UserError(
            f"The repository {name} has no revision {wanted.revision}; leave out @… for its newest."
        ) from None
    except GatedRepoError:
        raise UserError(
            f"The repository {name} is gated: accept its terms on its page of the hub, and {LOG_IN}."
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"There is no repository {name} on the hub, or it is private; check the name, and {LOG_IN} if it is yours."
        ) from None
    except Exception as problem:  # the library passes on errors of several network libraries
        reason = shorten_reason(problem)
    try:
        folder = Path(download(local_files_only=True))
    except Exception:
        raise UserError(
            f"{wanted} cannot be fetched ({reason}), and no complete copy of it is in the cache; try again with a "
            "network: what was fetched whole is kept."
        ) from None
    report(f"The hub cannot be reached ({reason}), so the copy of {wanted} in the cache is used: {folder.name[:12]}.")
    return folder


def shorten_reason(problem: Exception) -> str:
    """The first line of an error of the hub's library, or its class."""
    first = str(problem).strip().partition("\n")[0].rstrip(".")
    return first[:160] or type(problem).__name__
