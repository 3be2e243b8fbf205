"""Set-up and fixtures shared by all tests: one thread, a temporary cache, checked tensor shapes (unless disabled)."""

import os
import random
import time
from pathlib import Path

import pytest

if (
    os.environ.get("LOGOSPHERE_CHECK_SHAPES", "1") == "1"
):  # shape annotations become assertions; this must run before any import
    from jaxtyping import install_import_hook

    install_import_hook("logosphere", "beartype.beartype")

import torch
from text_fixtures import PROSE, write_file
from tiny_run import TEXT

from logosphere.data.corpora import open_corpus
from logosphere.data.corpus import Corpus

DEADLINE = float(os.environ.get("LOGOSPHERE_TEST_DEADLINE", "0"))
"""Seconds since 1970 after which no slow test begins; 0 for none."""
ORDER = os.environ.get("LOGOSPHERE_TEST_ORDER", "")
"""What the order of files is drawn from, such as the date; a deadline then skips other tests. Empty: by name."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but the first case of each `thorough` test as slow."""
    seen = set()
    for item in items:
        if item.get_closest_marker("thorough") is not None:
            name = item.nodeid.partition("[")[0]
            if name in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(name)
    if ORDER:  # by files, whose fixtures are shared
        files = sorted({item.path for item in items})
        random.Random(ORDER).shuffle(files)
        place = {path: number for number, path in enumerate(files)}
        items.sort(key=lambda item: place[item.path])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip slow tests that would begin after the deadline, so that a slow machine still ends in time."""
    if DEADLINE and time.time() > DEADLINE and item.get_closest_marker("slow") is not None:
        pytest.skip("the time for slow tests is over")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tiny tensors gain nothing from threads, and test processes share the cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The key that marks recipes as written here belongs to the tests, not to the user."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data-home"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LOGOSPHERE_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    """A text file of 120 lines."""
    return write_file(tmp_path / "prose.txt", PROSE)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Forty short lines, by characters."""
    return open_corpus(str(write_file(tmp_path / "text.txt", TEXT)), "characters")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> Path:
    """An empty working folder for commands; tokenised corpora are shared by the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGOSPHERE_CACHE", str(shared_cache))
    return tmp_path


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(20)
