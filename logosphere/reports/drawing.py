"""A drawing that stands alone: in a file, in a README, or as the answer of a notebook's cell."""

from dataclasses import dataclass
from pathlib import Path

from logosphere.atomic import write_whole

STYLE = """
svg{--paper:#fbfaf7;--ink:#1d1f24;--soft:#62666f;--line:#d9d6ce;
--s0:#0072b2;--s1:#d55e00;--s2:#009e73;--s3:#cc79a7;--s4:#b8860b;--s5:#3a9bdc;--s6:#7a5195;--s7:#4d4d4d}
text{font:12px system-ui,sans-serif;fill:var(--soft)}text.name,text.label{fill:var(--ink)}
.sheet{fill:var(--paper)}.grid{stroke:var(--line);stroke-width:1}.axis,.mark{stroke:var(--soft);stroke-width:1}
.level{stroke:var(--soft);stroke-dasharray:3 4}.globe{fill:none;stroke:var(--line)}
.series{stroke:currentColor;fill:currentColor;stroke-width:1.8}.series polyline{fill:none;stroke-linejoin:round}
.thin polyline{stroke-width:1;opacity:.55}.hollow polygon{fill:var(--paper)}.faint{opacity:.3}
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}
.s4{color:var(--s4)}.s5{color:var(--s5)}.s6{color:var(--s6)}.s7{color:var(--s7)}
"""
"""The colours of reports/style.css on their own paper, so that a picture looks alike wherever it is put."""


@dataclass(frozen=True)
class Drawing:
    """A whole SVG file."""

    svg: str

    def save(self, path: str | Path) -> None:
        write_whole(Path(path), self.svg.encode())

    def _repr_svg_(self) -> str:  # what notebooks ask for
        return self.svg


def standalone(element: str) -> Drawing:
    """A drawing of reports/svg.py on its own paper, with its style inside."""
    begin = element.index(">")
    head = element[:begin].replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    sheet = '<rect class="sheet" width="100%" height="100%" rx="8"/>'
    return Drawing(f"{head}><style>{STYLE}</style>{sheet}{element[begin + 1 :]}\n")
