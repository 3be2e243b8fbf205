"""Trajectories: one record of a walk, and everything that is shown is made from it."""

import io
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from toy_languages import generator

import logosphere as ls
from logosphere.cli.arguments import Sample
from logosphere.cli.live_view import LiveView, save_trajectory
from logosphere.data.tokenizers import text8_tokenizer
from logosphere.report.images import render_animated_svg, render_gif
from logosphere.report.page import build_animation
from logosphere.sampling.generate import generate
from logosphere.sampling.trajectory import Moment, Recorder, Trajectory, seen_from_above
from logosphere.sampling.walk import Frame

KNOWN = torch.arange(12) < 3


def recorded(system: str, **options: object) -> tuple[Trajectory, torch.Tensor]:
    torch.manual_seed(0)
    model = ls.build(system, vocab_size=27, length=12, width=8, depth=1, heads=1, **options)
    recorder = Recorder(model)
    local = model.process.codec.local
    given = {"known": KNOWN, "tokens": torch.arange(12)} if local and system != "ar" else {}
    drawn = ls.generate(model, n=2, steps=6, rng=torch.Generator().manual_seed(1), watch=recorder.see, **given)
    return recorder.trajectory, drawn.tokens


@pytest.mark.parametrize("system", ["ar", "mdlm", "d3pm-uniform", "sedd-absorb", "rdlm", "plaid", "bit-diffusion"])
def test_a_trajectory_ends_with_what_was_drawn_and_every_change_is_told(system: str) -> None:
    trajectory, drawn = recorded(system)
    shown = [[-1] * 12 for _ in range(2)]
    for number, moment in enumerate(trajectory.moments, start=1):
        assert moment.step == number and 0 <= moment.time <= 1
        for row, tokens, changed in zip(shown, moment.tokens, moment.changed, strict=True):
            assert all(row[i] != tokens[i] for i in changed)
            row[:] = [tokens[i] if i in changed else row[i] for i in range(12)]
            assert row == tokens
    assert shown == drawn.tolist() and trajectory.moments[-1].time == 0
    assert json.loads(json.dumps(trajectory.as_dict()))["length"] == 12


def test_known_positions_are_sure_and_doubt_is_the_networks() -> None:
    """A network without training that gives all 27 tokens about 1/27 is below one tenth sure."""
    language = ls.languages.markov(torch.full((3, 3), 1 / 3), torch.full((3,), 1 / 3), 12)
    model = ls.build("mdlm", vocab_size=3, length=12, denoiser=None)
    recorder = Recorder(model)
    oracle = ls.languages.oracle(model, language)
    ls.generate(model, n=1, steps=40, denoiser=oracle, known=KNOWN, tokens=torch.zeros(12).long(), watch=recorder.see)
    assert recorder.moments[-1].sure == ["999" + 9 * "3"]
    assert recorder.moments[0].sure is not None and recorder.moments[0].sure[0].startswith("999")


def test_what_is_known_is_guessed_before_states_spell_it() -> None:
    """A language of two texts, told apart by every token: whoever hears of one position knows all of them."""
    model = ls.build("rdlm", vocab_size=2, length=12, denoiser=None)
    language = ls.languages.markov(torch.eye(2), torch.tensor([0.5, 0.5]), 12)
    recorder = Recorder(model)
    oracle = ls.languages.oracle(model, language)
    tokens = ls.generate(model, n=1, steps=40, denoiser=oracle, watch=recorder.see).tokens[0].tolist()
    early = next(moment for moment in recorder.moments if moment.guessed and -1 not in moment.guessed[0])
    assert early.tokens[0] == [-1] * 12 and max(early.guessed[0]) == min(early.guessed[0])
    for moment in recorder.moments:
        assert all(guess < 0 or token < 0 for guess, token in zip(moment.guessed[0], moment.tokens[0], strict=True))
    assert recorder.moments[-1].tokens[0] == tokens and recorder.moments[-1].guessed[0] == [-1] * 12


def test_animations_show_guesses_and_end_as_the_text_does() -> None:
    """Position 0 is guessed as b, written as a; position 1 is guessed rightly and written at last."""
    rows = [([-1, -1], [1, -1]), ([0, -1], [-1, 2]), ([0, -1], [-1, 2]), ([0, 2], [-1, -1])]
    moments = [
        Moment(k + 1, 4, 1 - k / 3, [tokens], [[]], ["00"], [guess], None) for k, (tokens, guess) in enumerate(rows)
    ]
    animation = build_animation(Trajectory(2, moments), "abc".__getitem__)
    assert animation.predictions == [[[0, 1]], [[0, -1, 1, 2]], [[]], [[1, -1]]]
    drawing = render_animated_svg(animation)
    assert '<g class="a2"><text x="16" y="35" class="c c2">a</text>' in drawing  # a wrong guess is no dawn
    assert '<g class="a2"><text x="27" y="35" class="c c4">c</text>' in drawing


def test_networks_that_answer_with_states_are_sure_of_no_token() -> None:
    """As many features as tokens do not make features tokens."""
    for name, options in (("diffusion-lm", {"embedding": 5}), ("tencdm", {})):
        model = ls.build(name, vocab_size=5, length=6, width=16, depth=1, heads=1, **options)
        frames: list[Frame] = []
        generate(model, 2, 3, generator(1), watch=frames.append)
        assert all(frame.sure is None and frame.likeliest is None for frame in frames)


def test_watching_changes_nothing() -> None:
    _, drawn = recorded("mdlm")
    torch.manual_seed(0)
    model = ls.build("mdlm", vocab_size=27, length=12, width=8, depth=1, heads=1)
    rng = torch.Generator().manual_seed(1)
    assert torch.equal(ls.sample(model, 2, 6, rng, known=KNOWN, tokens=torch.arange(12)), drawn)


def test_states_on_the_sphere_go_from_the_middle_to_the_rim() -> None:
    vertices = torch.eye(5)[None]
    places = seen_from_above(vertices)[0]
    assert torch.allclose(places[4], torch.zeros(2)) and torch.allclose(places[:4].norm(dim=-1), torch.ones(4))
    trajectory, _ = recorded("rdlm")
    assert trajectory.moments[0].places is not None and recorded("mdlm")[0].moments[0].places is None
    last = torch.tensor(trajectory.moments[-1].places)
    assert last.shape == (2, 12, 2) and torch.allclose(last.norm(dim=-1), torch.ones(2, 12), atol=1e-2)


def test_animations_keep_their_end_however_few_frames_they_have() -> None:
    trajectory, drawn = recorded("mdlm")
    for most in (2, 3, 100):
        animation = build_animation(trajectory, text8_tokenizer().symbol, most)
        rows = [[-1] * 12 for _ in range(2)]
        for frame in animation.frames:
            for row, changes in zip(rows, frame, strict=True):
                for place, symbol in zip(changes[::2], changes[1::2], strict=True):
                    row[place] = symbol
        written = ["".join(animation.symbols[symbol] for symbol in row) for row in rows]
        assert written == ["".join(text8_tokenizer().symbol(token) for token in row) for row in drawn.tolist()]
        assert len(animation.frames) == len(animation.confidence) <= most


def test_animations_are_saved_in_three_forms(tmp_path: Path) -> None:
    trajectory, drawn = recorded("rdlm")
    texts = [text8_tokenizer().decode(row.numpy()) for row in drawn]
    for name in ("film.html", "film.svg", "film.json"):
        save_trajectory(tmp_path / "new" / name, trajectory, text8_tokenizer(), texts, "</script> & more")
    page = (tmp_path / "new" / "film.html").read_text()
    films = re.search(r'id="animations">(.*?)</script>', page, flags=re.DOTALL)
    assert films and json.loads(films[1])[0]["length"] == 12 and "</script> &" not in page
    assert "http:" not in page and "https:" not in page
    drawing = ElementTree.parse(tmp_path / "new" / "film.svg").getroot()
    letters = [node.text for node in drawing.iter() if (node.get("class") or "").startswith("c ")]
    assert "".join(letters) == condensed(texts[0])
    assert json.loads((tmp_path / "new" / "film.json").read_text())["texts"] == texts
    assert (
        render_animated_svg(build_animation(trajectory, text8_tokenizer().symbol), sample=1)
        != (tmp_path / "new" / "film.svg").read_text()
    )
    with pytest.raises(ls.UserError, match="must end in one of"):
        Sample(save=Path("film.mov")).check()


def test_a_gif_has_a_frame_for_each_moment_and_ends_as_the_text_does(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    trajectory, _ = recorded("mdlm")
    animation = build_animation(trajectory, text8_tokenizer().symbol)
    made = render_gif(animation)
    with image.open(io.BytesIO(made)) as opened:
        assert opened.format == "GIF" and opened.n_frames == len(animation.frames) and opened.info["loop"] == 0
        ends = []
        for number in (0, opened.n_frames - 1):
            opened.seek(number)
            ends.append(opened.convert("RGB"))
    bright = [(255, 209, 102) in {colour for _, colour in end.getcolors()} for end in ends]
    assert bright == [True, False]  # what has just been written, and nothing in the end
    assert render_gif(animation, sample=1) != made and render_gif(animation) == made
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ls.UserError, match="extra 'plot'"):
        render_gif(animation)


def condensed(text: str) -> str:
    return text.replace(" ", "")


def test_the_terminal_shows_doubt_in_colours_and_known_text_in_green() -> None:
    from logosphere.data.tokenizers import Prompt

    trajectory, _ = recorded("mdlm")
    shown = LiveView(text8_tokenizer(), Prompt(torch.arange(12), KNOWN))
    shown.close()
    line = shown.line(trajectory.moments[-1], 0)
    styles = {str(span.style) for span in line.spans}
    assert len(line.plain) == 12 and "green" in styles and "magenta" in styles and "bold yellow" not in styles
    assert any("bold yellow" in {str(s.style) for s in shown.line(m, 0).spans} for m in trajectory.moments[:-1])
