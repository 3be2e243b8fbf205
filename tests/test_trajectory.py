"""Trajectories: the record of a sampling run, and the animations made from it."""

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
from logosphere.sampling.loop import Frame
from logosphere.sampling.trajectory import Recorder, Trajectory, TrajectoryFrame, project_to_disc

KNOWN = torch.arange(12) < 3


def record_sampling(system: str, **options: object) -> tuple[Trajectory, torch.Tensor]:
    torch.manual_seed(0)
    model = ls.build(system, vocab_size=27, length=12, width=8, depth=1, heads=1, **options)
    recorder = Recorder(model)
    local = model.process.codec.local
    given = {"known": KNOWN, "tokens": torch.arange(12)} if local and system != "ar" else {}
    drawn = ls.generate(model, n=2, steps=6, rng=torch.Generator().manual_seed(1), watch=recorder.record, **given)
    return recorder.trajectory, drawn.tokens


@pytest.mark.parametrize("system", ["ar", "mdlm", "d3pm-uniform", "sedd-absorb", "rdlm", "plaid", "bit-diffusion"])
def test_a_trajectory_ends_with_the_samples_and_lists_every_change(system: str) -> None:
    trajectory, drawn = record_sampling(system)
    shown = [[-1] * 12 for _ in range(2)]
    for number, frame in enumerate(trajectory.frames, start=1):
        assert frame.step == number and 0 <= frame.time <= 1
        for row, tokens, changed in zip(shown, frame.tokens, frame.changed, strict=True):
            assert all(row[i] != tokens[i] for i in changed)
            row[:] = [tokens[i] if i in changed else row[i] for i in range(12)]
            assert row == tokens
    assert shown == drawn.tolist() and trajectory.frames[-1].time == 0
    assert json.loads(json.dumps(trajectory.as_dict()))["length"] == 12


def test_confidence_is_full_at_known_positions_and_predicted_elsewhere() -> None:
    """The oracle of a uniform language over 3 tokens has a confidence of one third, the digit 3."""
    language = ls.languages.markov(torch.full((3, 3), 1 / 3), torch.full((3,), 1 / 3), 12)
    model = ls.build("mdlm", vocab_size=3, length=12, denoiser=None)
    recorder = Recorder(model)
    oracle = ls.languages.oracle(model, language)
    ls.generate(
        model, n=1, steps=40, denoiser=oracle, known=KNOWN, tokens=torch.zeros(12).long(), watch=recorder.record
    )
    assert recorder.frames[-1].confidence == ["999" + 9 * "3"]
    assert recorder.frames[0].confidence is not None and recorder.frames[0].confidence[0].startswith("999")


def test_predictions_precede_decoded_tokens() -> None:
    """A language of two texts that differ in every token: one position determines all of them."""
    model = ls.build("rdlm", vocab_size=2, length=12, denoiser=None)
    language = ls.languages.markov(torch.eye(2), torch.tensor([0.5, 0.5]), 12)
    recorder = Recorder(model)
    oracle = ls.languages.oracle(model, language)
    tokens = ls.generate(model, n=1, steps=40, denoiser=oracle, watch=recorder.record).tokens[0].tolist()
    early = next(frame for frame in recorder.frames if frame.predicted and -1 not in frame.predicted[0])
    assert early.tokens[0] == [-1] * 12 and max(early.predicted[0]) == min(early.predicted[0])
    for frame in recorder.frames:
        assert all(guess < 0 or token < 0 for guess, token in zip(frame.predicted[0], frame.tokens[0], strict=True))
    assert recorder.frames[-1].tokens[0] == tokens and recorder.frames[-1].predicted[0] == [-1] * 12


def test_animations_show_predictions_and_end_with_the_text() -> None:
    """Position 0 is predicted as b and decoded as a; position 1 is predicted correctly and decoded last."""
    rows = [([-1, -1], [1, -1]), ([0, -1], [-1, 2]), ([0, -1], [-1, 2]), ([0, 2], [-1, -1])]
    frames = [
        TrajectoryFrame(k + 1, 4, 1 - k / 3, [tokens], [[]], ["00"], [guess], None)
        for k, (tokens, guess) in enumerate(rows)
    ]
    animation = build_animation(Trajectory(2, frames), "abc".__getitem__)
    assert animation.predictions == [[[0, 1]], [[0, -1, 1, 2]], [[]], [[1, -1]]]
    drawing = render_animated_svg(animation)
    assert (
        '<g class="a2"><text x="16" y="35" class="c c2">a</text>' in drawing
    )  # a wrong prediction is not shown as the token
    assert '<g class="a2"><text x="27" y="35" class="c c4">c</text>' in drawing


def test_models_that_predict_states_have_no_confidence() -> None:
    """This holds also if there are as many features as tokens."""
    for name, options in (("diffusion-lm", {"embedding": 5}), ("tencdm", {})):
        model = ls.build(name, vocab_size=5, length=6, width=16, depth=1, heads=1, **options)
        frames: list[Frame] = []
        generate(model, 2, 3, generator(1), watch=frames.append)
        assert all(frame.confidence is None and frame.likeliest is None for frame in frames)


def test_recording_does_not_change_samples() -> None:
    _, drawn = record_sampling("mdlm")
    torch.manual_seed(0)
    model = ls.build("mdlm", vocab_size=27, length=12, width=8, depth=1, heads=1)
    rng = torch.Generator().manual_seed(1)
    assert torch.equal(ls.sample(model, 2, 6, rng, known=KNOWN, tokens=torch.arange(12)), drawn)


def test_projected_states_go_from_the_centre_to_the_rim() -> None:
    vertices = torch.eye(5)[None]
    points = project_to_disc(vertices)[0]
    assert torch.allclose(points[4], torch.zeros(2)) and torch.allclose(points[:4].norm(dim=-1), torch.ones(4))
    trajectory, _ = record_sampling("rdlm")
    assert trajectory.frames[0].projected_xy is not None and record_sampling("mdlm")[0].frames[0].projected_xy is None
    last = torch.tensor(trajectory.frames[-1].projected_xy)
    assert last.shape == (2, 12, 2) and torch.allclose(last.norm(dim=-1), torch.ones(2, 12), atol=1e-2)


def test_shortened_animations_keep_their_last_frame() -> None:
    trajectory, drawn = record_sampling("mdlm")
    for max_frames in (2, 3, 100):
        animation = build_animation(trajectory, text8_tokenizer().symbol, max_frames)
        rows = [[-1] * 12 for _ in range(2)]
        for frame in animation.frames:
            for row, changes in zip(rows, frame, strict=True):
                for place, symbol in zip(changes[::2], changes[1::2], strict=True):
                    row[place] = symbol
        texts = ["".join(animation.symbols[symbol] for symbol in row) for row in rows]
        assert texts == ["".join(text8_tokenizer().symbol(token) for token in row) for row in drawn.tolist()]
        assert len(animation.frames) == len(animation.confidence) <= max_frames


def test_animations_are_saved_as_html_svg_and_json(tmp_path: Path) -> None:
    trajectory, drawn = record_sampling("rdlm")
    texts = [text8_tokenizer().decode(row.numpy()) for row in drawn]
    for name in ("film.html", "film.svg", "film.json"):
        save_trajectory(tmp_path / "new" / name, trajectory, text8_tokenizer(), texts, "</script> & more")
    page = (tmp_path / "new" / "film.html").read_text()
    animations = re.search(r'id="animations">(.*?)</script>', page, flags=re.DOTALL)
    assert animations and json.loads(animations[1])[0]["length"] == 12 and "</script> &" not in page
    assert "http:" not in page and "https:" not in page
    drawing = ElementTree.parse(tmp_path / "new" / "film.svg").getroot()
    letters = [node.text for node in drawing.iter() if (node.get("class") or "").startswith("c ")]
    assert "".join(letters) == without_spaces(texts[0])
    assert json.loads((tmp_path / "new" / "film.json").read_text())["texts"] == texts
    assert (
        render_animated_svg(build_animation(trajectory, text8_tokenizer().symbol), sample=1)
        != (tmp_path / "new" / "film.svg").read_text()
    )
    with pytest.raises(ls.UserError, match="must end in one of"):
        Sample(save=Path("film.mov")).check()


def test_a_gif_has_every_frame_and_ends_without_highlights(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    trajectory, _ = record_sampling("mdlm")
    animation = build_animation(trajectory, text8_tokenizer().symbol)
    made = render_gif(animation)
    with image.open(io.BytesIO(made)) as opened:
        assert opened.format == "GIF" and opened.n_frames == len(animation.frames) and opened.info["loop"] == 0
        ends = []
        for number in (0, opened.n_frames - 1):
            opened.seek(number)
            ends.append(opened.convert("RGB"))
    bright = [(255, 209, 102) in {colour for _, colour in end.getcolors()} for end in ends]
    assert bright == [True, False]  # changed tokens are highlighted, except in the last frame
    assert render_gif(animation, sample=1) != made and render_gif(animation) == made
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ls.UserError, match="extra 'plot'"):
        render_gif(animation)


def without_spaces(text: str) -> str:
    return text.replace(" ", "")


def test_the_terminal_shows_confidence_in_colours_and_known_text_in_green() -> None:
    from logosphere.data.tokenizers import Prompt

    trajectory, _ = record_sampling("mdlm")
    shown = LiveView(text8_tokenizer(), Prompt(torch.arange(12), KNOWN))
    shown.close()
    line = shown.line(trajectory.frames[-1], 0)
    styles = {str(span.style) for span in line.spans}
    assert len(line.plain) == 12 and "green" in styles and "magenta" in styles and "bold yellow" not in styles
    assert any("bold yellow" in {str(s.style) for s in shown.line(m, 0).spans} for m in trajectory.frames[:-1])
