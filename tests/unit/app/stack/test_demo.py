"""What the demo says of a run: its last line, its verdict and its exit code come from the report's intervals alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.app.context import Context
from trainyard.app.plan.parse import parse_request
from trainyard.app.plan.refusals import list_refusals
from trainyard.app.run_records import ClosedGate, RunResult
from trainyard.app.stack import demo
from trainyard.errors import TrainyardError
from trainyard.operations.stack import demo_text
from trainyard.settings import Settings
from trainyard.spec.graph import resolve
from trainyard.spec.states import JobState
from trainyard.spec.templates import TEMPLATES

BETTER = {"mean": 0.2, "low": 0.1, "high": 0.3}
UNSURE = {"mean": 0.2, "low": -0.1, "high": 0.5}

URLS = demo.DemoUrls(
    prefect="http://127.0.0.1:1", run="http://127.0.0.1:1/runs/1",
    dashboard="http://127.0.0.1:3/dashboard#login=once_x", model="http://127.0.0.1:2",
)  # fmt: skip


def make_result(*, base: dict[str, float] = BETTER, control: dict[str, float] = BETTER) -> demo.DemoResult:
    row = {
        "name": "heldout_loss", "set": "unseen_wording", "rows": 60, "baseline": 4.0, "control": 0.5, "candidate": 0.3,
        "improvement": base, "vs_control": control,
    }  # fmt: skip
    return demo.DemoResult(
        documents=3, pairs=10, kept=6, heldout=3, dropped={"too_long": 1}, sets=(demo.set_result(row),),
        quotes=demo.Quotes(questions=20, base=0, control=2, tuned=17),
        adapter="default/handbook/v1", prompt="What?", base_answer="No\nidea.", tuned_answer="That.",
        urls=URLS, seconds=1.0,
    )  # fmt: skip


def test_better_than_base_and_control_is_ok() -> None:
    good = make_result()
    assert good.exit_code == 0
    lines = demo_text(good).splitlines()
    assert lines[-1] == "demo: ok adapter=default/handbook/v1 base_loss=4.000 control_loss=0.500 tuned_loss=0.300"
    assert lines[1] == "rows       10 read = 6 kept + 3 held out + dropped (1 too_long)"
    assert "base       No idea." in lines
    assert "dashboard  http://127.0.0.1:3/dashboard#login=once_x (logs a browser in once, within an hour)" in lines
    assert "right sentence quoted 20       0        2      17   questions in unseen wording" in lines


@pytest.mark.parametrize("fields", [{"base": UNSURE}, {"control": UNSURE}])
def test_an_interval_that_holds_zero_is_a_failure(fields: dict[str, dict[str, float]]) -> None:
    bad = make_result(**fields)
    assert bad.exit_code == 1
    assert bad.last_line.startswith("demo: failed adapter=")


def test_a_run_that_failed_is_told_in_its_own_words() -> None:
    run = RunResult(
        run_id="1", name="n", chain="c", digest="d", state=JobState.FAILED, message="trainer: E-DATA-EMPTY", url="u"
    )
    with pytest.raises(TrainyardError, match=r"E-DEMO: The demo's run did not complete\. Why: trainer: E-DATA-EMPTY"):
        demo.summarize(run, urls=URLS, seconds=0)


def test_a_gate_that_says_no_fails_the_demo_with_its_reasons() -> None:
    gate = ClosedGate(node="deployer", verdict="not better than its baseline", reasons=("loss/a: worse.",))
    run = RunResult(
        run_id="1",
        name="n",
        state=JobState.COMPLETED,
        detail="not deployed",
        message="Not deployed.",
        gate=gate,
        url="u",
    )
    with pytest.raises(TrainyardError, match=r"E-DEMO: .* Why: Not deployed\."):
        demo.summarize(run, urls=URLS, seconds=0)


def test_its_parameters_are_what_the_form_accepts() -> None:
    model = TEMPLATES[demo.TEMPLATE].model.model_validate(demo.PARAMETERS)
    assert model.build().name == demo.TEMPLATE
    assert Path(demo.PARAMETERS["documents"]).is_dir()


def test_it_finds_its_handbook_from_any_folder(tmp_path: Path) -> None:
    elsewhere = Context(Settings(home=tmp_path / "home", working_folder=tmp_path))
    for context, is_found in ((elsewhere, False), (demo.move_to_checkout(elsewhere), True)):
        chain = resolve(parse_request(demo.TEMPLATE, demo.PARAMETERS).spec, "starter")
        refused = {reason.code for reason in list_refusals(chain, context.settings)}
        assert ("E-DATA-NOT-FOUND" not in refused) is is_found
