"""The structure metrics of the package (tools/structure.py) are computed and plausible."""

import json
import sys

import pytest
import structure


def test_code_lines_leave_out_blank_lines_comments_and_docstrings() -> None:
    code = (
        'x = 1  # a comment\n# another\n"""About x."""\n\n\ndef f():\n    """Doc."""\n    return (\n        x\n    )\n'
    )
    text = f'"""A module."""\n\n{code}'
    assert structure.count_code_lines(text) == 5


def test_static_metrics() -> None:
    content = structure.measure(static=True)
    core, whole = content["core"], content["whole"]
    assert 50 < core["modules"] < whole["modules"] and 0 < core["code_lines"] < core["lines"] < whole["lines"]
    assert 1 < whole["median_function"] < 20
    assert 3 <= content["process"]["abstract"] < content["process"]["public"]
    assert all(":" in place for place in content["local_imports"] + content["foreign_isinstance"])
    assert "core modules" in structure.table(content) and json.dumps(content)


def test_a_trace_counts_functions_files_and_frames() -> None:
    import torch

    import logosphere as ls
    from logosphere.training.trainer import Trainer
    from logosphere.types import Batch

    trainer = Trainer(ls.build("mdlm", vocab_size=5, length=4, width=8, depth=1, heads=1))
    batch = Batch.of(torch.zeros(2, 4, dtype=torch.long))
    before = sys.getprofile()
    trace = structure.traced(lambda: trainer.train_step(batch, 0.0), ("loss",), within="train_step")
    assert sys.getprofile() is before
    assert "training/trainer.py" in trace.names and "model.py" in trace.names
    assert 5 < trace.files == len(trace.names) <= trace.functions and 3 <= trace.frames <= 12


@pytest.mark.slow
def test_actions_of_a_run() -> None:
    actions = structure.trace_actions()
    assert set(actions) == {"build", "train step", "sample", "evaluate", "compare"}
    assert all(trace.files > 5 and trace.functions >= trace.files for trace in actions.values())
    assert actions["train step"].frames <= 12, "from `logosphere train` to the loss"
    assert all(trace.frames > 3 for name, trace in actions.items() if name != "build")
