"""Rules that undo the word separation of the zero-shot sets, as in the evaluations of SEDD and MDLM.

Each set was published in words between spaces, with marks of its own; models of running text are measured on the text
as it would be written. Rules act in their order, and a text that none matches is left as it is.
"""

import re
from collections.abc import Callable, Sequence

Rule = tuple[re.Pattern[str], str]
Detokenizer = Callable[[str], str]


def literal(text: str, by: str) -> Rule:
    """Replace a text wherever it stands."""
    return re.compile(re.escape(text)), by.replace("\\", r"\\")


def pattern(expression: str, by: str) -> Rule:
    """Replace what a regular expression matches."""
    return re.compile(expression), by


def apply_rules(rules: Sequence[Rule], text: str) -> str:
    """A text after all rules, one after another."""
    for found, by in rules:
        text = found.sub(by, text)
    return text


def _no_space_before(marks: str) -> list[Rule]:
    """A mark between spaces is joined to the word before it."""
    return [literal(f" {mark} ", f"{mark} ") for mark in marks]


WIKITEXT: tuple[Rule, ...] = (
    literal("s '", "s'"),
    *[literal(f" @{mark}@ ", mark) for mark in "-,."],  # within numbers and compounds
    *_no_space_before(":;.!?,"),
    # Pairs of marks hug what they enclose.
    pattern(r"\(\s*([^\)]*?)\s*\)", r"(\1)"),
    pattern(r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    pattern(r"{\s*([^}]*?)\s*}", r"{\1}"),
    pattern(r'"\s*([^"]*?)\s*"', r'"\1"'),
    pattern(r"'\s*([^']*?)\s*'", r"'\1'"),
    # Marks of headings, longest first.
    *[literal(" ".join("=" * n), "=" * n) for n in (4, 3, 2)],
    literal(" ° ", "°"),
    literal(" \n", "\n"),
    literal("\n ", "\n"),
    literal(" N ", " 1 "),
    literal(" 's", "'s"),
)
PTB: tuple[Rule, ...] = (
    literal(" 's", "'s"),
    literal("s ' ", "s' "),
    literal(" n't", "n't"),
    literal(" \n ", "\n"),
    literal(r"\/", "/"),
    pattern(r" N(?= )", " 1"),  # numbers, which may follow one another
    literal("$ 1", "$1"),
    literal("# 1", "#1"),
    literal("<unk>", "?"),
)
LM1B: tuple[Rule, ...] = (
    literal("http : / / ", "http://"),
    literal("https : / / ", "https://"),
    pattern(r" '(\w+)", r"'\1"),
    pattern(r" (\w+) \. ", r" \1. "),
    pattern(r" (\w+) \.$", r" \1."),
    literal(" ? ", "? "),
    pattern(r" \?$", "?"),
    literal(" ! ", "! "),
    pattern(r" !$", "!"),
    *_no_space_before(",:;"),
    literal(" / ", "/"),
    pattern(r'" ([^"]+) "', r'"\1"'),
    pattern(r"' ([^']+) '", r"'\1'"),
    pattern(r"\( ([^\(\)]+) \)", r"(\1)"),
    pattern(r"\[ ([^\[\]]+) \]", r"[\1]"),
    literal("$ ", "$"),
    literal("£ ", "£"),
)


def detokenize_wikitext(text: str) -> str:
    """WikiText: separators of numbers such as @-@, punctuation, brackets, quotes and headings."""
    return apply_rules(WIKITEXT, text)


def detokenize_ptb(text: str) -> str:
    """Penn Treebank: contractions; N, which stands for a number, becomes 1, and <unk> a question mark."""
    return apply_rules(PTB, text)


def detokenize_lm1b(text: str) -> str:
    """The One Billion Word Benchmark: addresses, contractions, punctuation and quotes."""
    return apply_rules(LM1B, text)


def detokenize_lambada(text: str) -> str:
    """LAMBADA: straight quotes, and a line break before each passage."""
    return "\n" + text.replace("“", '"').replace("”", '"').strip()


def detokenize_papers(text: str) -> str:
    """Scientific papers: the rules of WikiText, then those of the One Billion Word Benchmark."""
    return detokenize_lm1b(detokenize_wikitext(text))


def keep_text(text: str) -> str:
    """AG News is published as it was written."""
    return text
