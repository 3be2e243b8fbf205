"""One-line descriptions of the built-in corpora and datasets; imports no torch, so that listing them is instant."""

CORPORA: dict[str, str] = {
    "pydoc": "Python's own help topics in the alphabet of text8: 0.4 million characters, on every machine",
    "text8": "the first 100 million characters of cleaned English Wikipedia (a download of 31 MB)",
}
"""Running texts."""

DATASETS: dict[str, str] = {
    "e2e": "descriptions of restaurants, each from its meaning",
    "captions": "what people wrote below pictures, one sentence each",
    "tinystories": "paragraphs of stories for small children",
    "smiles": "the small molecules of QM9 as SMILES",
    "promoters": "human core promoters and other DNA, 70 bases, labelled",
    "bound-sites": "sites that a transcription factor binds and others, 101 bases, labelled",
    "enhancers": "human enhancers and other DNA, 200 bases, labelled",
    "synthetic-promoters": "made-up DNA of 96 bases with motifs that a signal calls for, and an exact score",
    "cifar10": "CIFAR-10 in colour: 3,072 pixels of 256 levels, labelled",
    "digits": "1,797 handwritten digits of scikit-learn: 8 × 8 pixels, 17 levels, labelled",
    "mnist-binary": "MNIST in black and white, 28 × 28",
    "sudoku": "solved sudokus, cells 0 to 8, with their clues, 1 to 9 and 0 for an open cell",
    "chorales": "Bach's chorales in quarters: four pitches a beat from the lowest voice, 0 is a rest",
}
"""Sets of separate sequences."""
