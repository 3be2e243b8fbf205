"""The corpora that are known by name: what they are, their licences, and the files they are published in.

Addresses of repositories name a commit, so that the files behind them do not change. Sizes and hashes are checked after
a download; a file without a hash is checked by the form of its content when it is read.
"""

from dataclasses import dataclass

HUB = "https://huggingface.co"
"""The dataset hub; the environment variable HF_ENDPOINT names a mirror of it."""


@dataclass(frozen=True)
class RemoteFile:
    """A published file."""

    name: str
    """Its name in the cache, in archives and in the folder LOGOSPHERE_DATA."""
    size: int
    """Bytes that are downloaded; an estimate unless `exact`."""
    urls: tuple[str, ...]
    """Its address and mirrors of it."""
    sha256: str = ""
    """Empty where it is not known."""
    head: bool = False
    """Only the first `size` bytes of a larger file are downloaded."""
    exact: bool = True


@dataclass(frozen=True)
class NamedCorpus:
    """A corpus that has a name."""

    about: str
    licence: str
    files: tuple[RemoteFile, ...] = ()
    """What is downloaded; empty where the corpus needs no file."""
    archives: tuple[str, ...] = ()
    """Archives that hold the same, where one of them is in the folder LOGOSPHERE_DATA."""
    package: str = ""
    """The package that brings it, where that is not Python itself."""
    texts_sha256: str = ""
    """Hash of the texts that published results were measured on, for files whose own hash is not known."""
    note: str = ""

    @property
    def size(self) -> int:
        """Bytes of a download."""
        return sum(file.size for file in self.files)


def _github(repository: str, commit: str, path: str) -> tuple[str, ...]:
    return (f"https://raw.githubusercontent.com/{repository}/{commit}/{path}",)


def _hub(dataset: str, revision: str, path: str) -> tuple[str, ...]:
    return (f"{HUB}/datasets/{dataset}/resolve/{revision}/{path}",)


def _captions(name: str, path: str, size: int, sha256: str) -> RemoteFile:
    commit = "25c870a219660b04bd7f2625b3b4060c186759a0"
    return RemoteFile(name, size, _github("williamSYSU/TextGAN-PyTorch", commit, path), sha256)


def _stories(name: str, path: str, size: int, sha256: str = "") -> RemoteFile:
    revision = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
    return RemoteFile(name, size, _hub("roneneldan/TinyStories", revision, path), sha256, head=True)


def _gue(task: str, split: str, size: int, sha256: str) -> RemoteFile:
    commit = "3ec5048b3dcc68bcb1d0a144b7c038af79d52ccf"
    urls = _github("wds-seu/DeepGene", commit, f"data/GUE/{task}/{split}.csv")
    return RemoteFile(f"gue_{task.replace('/', '_')}_{split}.csv", size, urls, sha256)


def _enhancers(name: str, size: int) -> RemoteFile:
    commit = "e0d8e1d241bbe05445e32822414ac75af6ed3efa"
    return RemoteFile(name, size, _github("khanhlee/bert-enhancer", commit, f"data/{name}"))


def _mnist(split: str, size: int) -> RemoteFile:
    name = f"binarized_mnist_{split}.amat"
    address = f"https://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/{name}"
    return RemoteFile(name, size, (address,), exact=False)  # its hash is not known, so it needs an encrypted connection


def _sudoku(name: str, size: int) -> RemoteFile:
    commit = "f570414d40be98b4cab7951b33b7fd0b9e7b7ae5"
    return RemoteFile(name, size, _github("matthewdemczyk/CSI4900_Dancing_Links", commit, name))


_STORIES = (
    _stories("tinystories_first10k_lines.txt", "TinyStoriesV2-GPT4-train.txt", 1_424_708,
             "5a19b936d7b53bbdac1eea03230b00161dceca24ae272f5bd8e9dbbc2a883418"),
    _stories("tinystories_smallGPT.txt", "TinyStories-train.txt", 1_000_000),
)  # fmt: skip


CORPORA: dict[str, NamedCorpus] = {
    "pydoc": NamedCorpus(
        "Python's own help topics in the alphabet of text8: 0.4 million characters", "PSF License", package="Python"
    ),
    "text8": NamedCorpus(
        "the first 100 million characters of cleaned English Wikipedia",
        "GFDL and CC BY-SA (Wikipedia)",
        (
            RemoteFile(
                "text8.zip",
                31_344_016,
                (
                    "https://mattmahoney.net/dc/text8.zip",
                    "https://data.deepai.org/text8.zip",
                    "https://cs.fit.edu/~mmahoney/compression/text8.zip",
                    "http://mattmahoney.net/dc/text8.zip",
                ),
                "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
            ),
        ),
        archives=("text8.zip", "text8"),
    ),
}
"""Running texts."""

DATASETS: dict[str, NamedCorpus] = {
    "e2e": NamedCorpus(
        "descriptions of restaurants, each from its meaning",
        "CC BY-SA 4.0",
        (
            RemoteFile(
                "e2e-dataset.zip",
                1_528_421,
                ("https://github.com/tuetschek/e2e-dataset/releases/download/v1.0.0/e2e-dataset.zip",),
                "1261064c01907af27e8cc39e0a29a81541f6ab69208c1cbfc1be95afbb49dfac",
            ),
        ),
        archives=("e2e-dataset.zip",),
    ),
    "captions": NamedCorpus(
        "captions of pictures (COCO), one sentence each",
        "CC BY 4.0 (COCO), in a repository under MIT",
        (
            _captions("image_coco_train.txt", "dataset/image_coco.txt", 546_442,
                      "2c0fd1f0f43aac6a9dc3926a535516ccf395de535e15ac1fd17cd569420736f5"),
            _captions("image_coco_test.txt", "dataset/testdata/image_coco_test.txt", 536_184,
                      "72e25c9fb4d2cd43182ac602c92f6ffc377762147f9709572943b0b09174bcae"),
        ),
        archives=("captions.tar.xz",),
    ),
    "tinystories": NamedCorpus(
        "paragraphs of stories for small children: the beginning of TinyStories",
        "CDLA-Sharing-1.0",
        _STORIES,
        archives=("tinystories.tar.xz",),
        texts_sha256="aee6f7cef26494f5c00d8bc0d09c2cb93175ed09107cccee9b538a509f7b114c",
        note="hf:roneneldan/TinyStories is the whole set",
    ),
    "passages": NamedCorpus(
        "passages of the same stories: up to 450 characters of consecutive paragraphs",
        "CDLA-Sharing-1.0",
        _STORIES,
        archives=("tinystories.tar.xz",),
        texts_sha256="7d68c0596e280fc819615d7e63df66e31248327cdf410991f9cfbc96cab0a8fa",
    ),
    "smiles": NamedCorpus(
        "the small molecules of QM9 as SMILES",
        "CC0",
        (
            RemoteFile(
                "qm9_smiles_full.txt",
                2_109_816,
                _hub("chao1224/Geom3D_data", "77617a3b0aab07244dbdb81886a5fda6b995ae4f", "QM9/processed/smiles.csv"),
                "c64f091ab8a2f9eaca39e97df40ab8640f7093421431f320c6e93eef61cce307",
            ),
        ),
        archives=("molecules.tar.xz",),
    ),
    "promoters": NamedCorpus(
        "human core promoters and other DNA, 70 bases, labelled (GUE)",
        "Apache-2.0",
        (
            _gue("prom/prom_core_all", "train", 3_457_003,
                 "a36e0bbf2b59e01479bb904534d310041b493fec9221ccd74b518893d74054ed"),
            _gue("prom/prom_core_all", "dev", 432_175,
                 "98dd5d2b5df3c93cad9fa0a4a36078d28fa95b7bf9ab73fb2e5ba1fa74877f2b"),
            _gue("prom/prom_core_all", "test", 432_175,
                 "b1babbb52abd0fb5328eccc4ce8ab60d0a58d28bdc88c30f8e2140cf1684ce0c"),
        ),
        archives=("dna.tar.xz",),
    ),
    "bound-sites": NamedCorpus(
        "sites that a transcription factor binds and others, 101 bases, labelled (GUE)",
        "Apache-2.0",
        (
            _gue("tf/0", "train", 3_367_327, "930080e019fb92961cbd71998839466c2fc4c34da8fc174999a2ed04ef46822f"),
            _gue("tf/0", "dev", 104_015, "17ff638046d146102a86b727adc9ddead9f1f1793577a38961e1f3319da7f738"),
            _gue("tf/0", "test", 104_015, "d29934d0df424a91ef70f6a62671d9d1c4661b485d7010983b49c8bcfba6aeab"),
        ),
        archives=("dna.tar.xz",),
    ),
    "enhancers": NamedCorpus(
        "human enhancers and other DNA, 200 bases, labelled (iEnhancer-2L)",
        "not stated",
        (_enhancers("enhancer.cv.txt", 338_182), _enhancers("non.cv.txt", 338_234)),
        archives=("dna.tar.xz",),
        texts_sha256="2566e0342d26eb2e1b8a96fff2f79b268fbd24c023c630113413cb6db074d8e0",
    ),
    "synthetic-promoters": NamedCorpus(
        "synthetic DNA of 96 bases whose motifs depend on a signal, with an exact score", "none needed"
    ),
    "cifar10": NamedCorpus(
        "CIFAR-10 in colour: 3,072 pixels of 256 levels, labelled",
        "not stated",
        (
            RemoteFile(
                "cifar-10-binary.tar.gz",
                170_052_171,
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        archives=("cifar-10-binary.tar.gz", "cifar-10-binary-part.tar.xz"),
    ),
    "digits": NamedCorpus(
        "1,797 handwritten digits of scikit-learn: 8 × 8 pixels, 17 levels, labelled",
        "CC BY 4.0 (UCI)",
        package="scikit-learn",
    ),
    "mnist-binary": NamedCorpus(
        "MNIST in black and white, 28 × 28 (the static binarisation of Larochelle and Murray)",
        "as MNIST",
        (_mnist("train", 78_400_000), _mnist("valid", 15_680_000), _mnist("test", 15_680_000)),
        archives=("binarized_mnist.npz",),
        texts_sha256="dc055c30df80aea623e334e04c44f922fffeb205b7a435d057738a091d4ec430",
    ),
    "sudoku": NamedCorpus(
        "solved sudokus of 17 clues, cells 0 to 8, with their clues, 1 to 9 and 0 for an open cell",
        "not stated",
        (_sudoku("sudoku17.txt", 4_030_299), _sudoku("sudoku17_solutions.txt", 4_030_300)),
        archives=("music_sudoku.tar.xz",),
        note="results were measured on an archive with 49,151 grids in canonical form (music_sudoku.tar.xz); the "
        "download has 49,150 of them as first published, so its splits hold other texts",
    ),
    "chorales": NamedCorpus(
        "Bach's chorales in quarters: four pitches a beat from the lowest voice, 0 is a rest",
        "public domain",
        (
            RemoteFile(
                "jsb-chorales-quarter.json",
                407_200,
                _github("czhuang/JSB-Chorales-dataset", "9a7f733ddb4ed91f48da64ac7f0f621c34aadd4d",
                        "jsb-chorales-quarter.json"),
                "2db9329f1881a1d3f49703ec556bf1d6f84b4f6c1d702c156536e93cf31e1c91",
            ),
        ),
        archives=("music_sudoku.tar.xz",),
    ),
}  # fmt: skip
"""Sets of separate sequences."""

CATALOGUE = CORPORA | DATASETS
