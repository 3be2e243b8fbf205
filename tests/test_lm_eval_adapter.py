"""The lm-evaluation-harness adapter: its answers are those of the run, and real tasks run offline."""

import json
import math
from pathlib import Path

import pytest
from cli_helpers import train

pytest.importorskip("lm_eval", reason="the extra 'eval' is not installed")

from lm_eval.api.instance import Instance  # noqa: E402

from logosphere.runs.lm_eval_adapter import Harness  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("workplace"),
    pytest.mark.filterwarnings("ignore"),  # warnings of the harness do not concern this package
]


def request(*arguments: object) -> Instance:
    return Instance(request_type="loglikelihood", doc={}, arguments=arguments, idx=0)


def test_the_adapter_passes_requests_on() -> None:
    train("--system", "ar", steps=3, out="ar")
    adapter = Harness("ar", draws="8", batch_size="4")  # the harness passes text
    inner = adapter.task_model
    assert (inner.draws, inner.batch, adapter.kind) == (8, 4, "exact")
    assert adapter.loglikelihood([request("the king", " of")]) == inner.score_continuations([("the king", " of")])
    assert adapter.loglikelihood_rolling([request("the king")]) == inner.score_texts(["the king"])
    how = {"until": ["e"], "max_gen_toks": 8}
    assert adapter.generate_until([request("the ", how)]) == [inner.continue_text("the ", how)]


def test_a_task_runs_from_a_local_file(workplace: Path) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    train("--system", "ar", steps=3, out="ar")
    rows = [{"text": "the king of the hill", "question": "the", "choices": [" cat", " zzz"], "answer": 0}] * 3
    (workplace / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    data = f"dataset_path: json\ndataset_kwargs:\n  data_files: {{test: {workplace / 'rows.json'}}}\ntest_split: test\n"
    (workplace / "bits.yaml").write_text(
        f"task: tiny_bits\n{data}output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{{{text}}}}'\n"
        "metric_list:\n  - metric: bits_per_byte\n"
    )
    (workplace / "choice.yaml").write_text(
        f"task: tiny_choice\n{data}output_type: multiple_choice\ndoc_to_text: '{{{{question}}}}'\n"
        "doc_to_choice: '{{choices}}'\ndoc_to_target: '{{answer}}'\nmetric_list:\n  - metric: acc\n"
    )
    manager = TaskManager(include_path=str(workplace), include_defaults=False)
    found = simple_evaluate(Harness("ar"), tasks=["tiny_bits", "tiny_choice"], task_manager=manager, bootstrap_iters=0)
    bits = found["results"]["tiny_bits"]["bits_per_byte,none"]
    adapter = -Harness("ar").loglikelihood_rolling([request(rows[0]["text"])])[0] / len(rows[0]["text"]) / math.log(2)
    assert bits == pytest.approx(adapter, rel=1e-5)
    assert found["results"]["tiny_choice"]["acc,none"] in (0.0, 1.0)
