"""The page about a run answers its five questions, shows no text of the data unasked, and runs nothing."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.flows.chain_runs import complete, fill_working_folder
from trainyard.app.adapters.versions import show_card
from trainyard.app.artifacts.ledger import export
from trainyard.app.context import Context
from trainyard.app.reports.report import RunReport, write_report
from trainyard.app.run_records import RunResult
from trainyard.operations.adapters import CardInput
from trainyard.operations.ledger import LedgerExportInput, ReportInput
from trainyard.settings import settings
from trainyard.spec.chain import ChainSpec
from trainyard.stores.jobs import NoteStore
from trainyard.stores.ledger.log import Ledger
from trainyard.stores.ledger.merkle import hash_leaf, verify_inclusion

pytestmark = [pytest.mark.usefixtures("prefect"), pytest.mark.integration]
SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(2)>"
SECRETS = {
    "OPENAI_API_KEY": "sk-canary-0123456789abcdef",
    "HF_TOKEN": "hf_canaryCANARYcanaryCANARYcanary01",
    "AWS_SECRET_ACCESS_KEY": "canary/AKIA/0123456789abcdefghijklmnop",
}
WORD = "zebrafinch"
"""In every row of the data, and nowhere else."""


@pytest.fixture
def result(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> RunResult:
    """A run with a theme, a note, a licence and a file name that are markup, and secrets in the environment."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRAINYARD_PRICE_PER_HOUR", "2.5")
    endpoint = {"base_url": "https://user:canary-password@models.test/v1", "api_key_env": "OPENAI_API_KEY"}
    monkeypatch.setenv("TRAINYARD_ENDPOINTS", json.dumps({"judge": endpoint}))
    rows = [
        {"instruction": f"What does the {WORD} say about {n}?", "output": f"The {WORD} says {2 * n}."}
        for n in range(120)
    ]
    work = tmp_path / "work"
    work.mkdir()
    fill_working_folder(work, tiny_model, monkeypatch, {f"{IMAGE}.jsonl": rows})
    training = {"max_steps": 30, "learning_rate": 5e-3, "max_length": 64}
    spec = {
        "name": "finches",
        "theme": f"support {SCRIPT}",
        "tags": ["pilot", "q4"],
        "nodes": [
            {"type": "data_source", "config": {"path": f"{IMAGE}.jsonl", "license": f"cc0 {SCRIPT}"}},
            {
                "type": "validator",
                "config": {"holdout": {"documents": 0.3}, "near_duplicates": None, "decontaminate": 0},
            },
            {"type": "trainer", "config": {"hyperparameters": training}},
            {"type": "evaluator", "config": {"benchmarks": [{"name": "heldout_loss"}], "samples": 2}},
            {"type": "deployer", "config": {"role": "finches"}},
        ],
    }
    result = complete(ChainSpec.model_validate(spec))
    NoteStore(settings().notes).write(result.run_id, f"Keep this one {SCRIPT}")
    return result


def test_the_page_of_a_run(result: RunResult, tmp_path: Path) -> None:
    context = Context(settings(), say=lambda _: None)
    page = write_report(ReportInput(run=result.run_id), context)
    check_answers(page)
    check_page(page.html)
    check_proofs(page)
    check_canaries(result, page, tmp_path, context)


def check_answers(page: RunReport) -> None:
    answers = dict(page.answers)
    assert "120 rows" in answers["What data?"]
    assert re.search(r"learns from [\d,]+ of [\d,]+ tokens", answers["Which tokens?"])
    assert answers["What did it replace?"].startswith("default/finches/v1 replaced nothing")
    assert re.match(r"Better, .*improvement \+[\d.]+ \[\+[\d.]+, \+[\d.]+\]", answers["How much better, how certain?"])
    assert "USD" in answers["At what cost?"]


def check_proofs(page: RunReport) -> None:
    """The leaf hashes of the page are those of the ledger, and each proof on it leads from one to the signed root."""
    ledger = Ledger.at_home(settings().home)
    head = ledger.head()
    for seq in range(head.size):
        leaf = hash_leaf(head.tiles.entry(seq)).hex()
        assert (leaf in page.html) is (head.entry(seq)["kind"] != "opened")
    proofs = [unescape(text) for text in re.findall(r"<pre>(c2sp\.org/tlog-proof@v1.*?)</pre>", page.html, re.DOTALL)]
    assert len(proofs) == head.size - 1
    for text in proofs:
        seq = int(text.splitlines()[1].removeprefix("index "))
        steps = [base64.b64decode(line) for line in text.partition("\n\n")[0].splitlines()[2:]]
        leaf = hash_leaf(head.tiles.entry(seq))
        assert verify_inclusion(leaf, seq, head.size, steps, head.checkpoint.root)


class TagReader(HTMLParser):
    """Collects the names of the elements of a page, and every address in it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "xlink:href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]


def check_page(html: str) -> None:
    """No script, no request, no handler; every hostile text is there as text."""
    reader = TagReader()
    reader.feed(html)
    assert reader.tags.isdisjoint({"script", "link", "iframe", "form", "object", "b"})
    (lineage,) = reader.addresses
    assert reader.handlers == []
    picture = base64.b64decode(lineage.removeprefix("data:image/svg+xml;base64,")).decode()
    assert "trained" in picture
    assert SCRIPT not in picture
    assert "<script" not in picture
    assert "href" not in picture
    assert "default-src 'none'" in html
    assert "url(" not in html
    assert "@import" not in html
    text = unescape(html)
    for line in (f"support {SCRIPT}", f"Keep this one {SCRIPT}", f"cc0 {SCRIPT}", f"{IMAGE}.jsonl"):
        assert line in text
        assert line not in html


def check_canaries(result: RunResult, page: RunReport, tmp_path: Path, context: Context) -> None:
    """Secrets are nowhere; text of the data is in requested samples and in the data of a bundle."""
    head = Ledger.at_home(settings().home).head()
    trained = next(seq for seq in range(head.size) if head.entry(seq)["kind"] == "trained")
    plain, whole = tmp_path / "plain", tmp_path / "whole"
    export(LedgerExportInput(target=plain, entries=(str(trained),)), context)
    export(LedgerExportInput(target=whole, entries=(str(trained),), data=True), context)
    card = show_card(CardInput(name="default/finches"), context).markdown
    with_samples = write_report(ReportInput(run=result.run_id, samples=True), context).html
    ledger = read_files(Ledger.at_home(settings().home).folder)
    carried = {name: data for name, data in read_files(whole).items() if not name.startswith("data/")}
    places = {
        **ledger,
        **read_files(plain),
        **carried,
        "card": card.encode(),
        "page": page.html.encode(),
        "picture": decode_picture(page.html),
    }
    secrets = [value.encode() for value in (*SECRETS.values(), "canary-password", str(tmp_path))]
    for name, data in {**places, "samples": with_samples.encode(), **read_files(whole)}.items():
        allowed = [str(tmp_path).encode()] if name.startswith(("recipes/", "data/")) else []
        assert not [secret for secret in secrets if secret in data and secret not in allowed], name
    assert not [name for name, data in places.items() if WORD.encode() in data]
    assert WORD in with_samples
    assert with_samples.count(WORD) == sum(part.count(WORD) for part in samples_section(with_samples))


def decode_picture(html: str) -> bytes:
    return base64.b64decode(html.partition("data:image/svg+xml;base64,")[2].partition('"')[0])


def samples_section(html: str) -> Iterator[str]:
    yield html.partition("<h3>Samples")[2].partition("<h2>")[0]


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
