"""The same SFT job on native, trl, mlx and deepspeed from the same first weights: one curve and one model.

What could differ is taken away. All rows have as many tokens as each other and one batch holds all of them, so neither
an order of rows nor padding matters; everything is float32 on one thread. mlx draws a new adapter in a way of its own,
so the adapter that is continued was made before by the native engine and is the same bytes for all four; whole weights
begin at the base. Of new adapters mlx is compared in its first losses only: B is zero, and whatever A is, the model is
still the base. The other three draw A by PEFT from the seed of the job, and have the same curve here, too.

Tolerances. The libraries add the same float32 numbers in other orders, and Adam divides the gradients near zero, which
are rounding, by their own size. Measured over ten steps in which the loss falls by 0.7 to 0.9: losses of torch within
1.2e-6 and of mlx within 5.3e-6; logits, which reach 1.3, within 2.6e-6 and 1.9e-5. About four times that is allowed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.conftest import REPOSITORY
from tests.small_jobs import Jobs, Ran, conversation, train_as_child, train_here
from trainyard.data.rows import Row, write_rows
from trainyard.serve.conversion.between import Layout, convert
from trainyard.spec.axes.data import Port
from trainyard.train.rows.tokens import encode_sft

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),  # PEFT asks for it
]
ENVIRONMENTS = REPOSITORY / ".trainyard" / "envs"
ROWS, STEPS = 8, 10
SAME_LOSS, SAME_LOGIT, SAME_RATE = 2e-5, 8e-5, 1e-9
SAME_QUANTISED_LOSS = 1e-3
"""What the order of products in blocks of 4 and 8 bits may add."""
KINDS: dict[str, dict[str, Any]] = {
    "continued": {"method": "lora", "hyperparameters": {"learning_rate": 5e-3}},
    "new": {"method": "lora", "hyperparameters": {"learning_rate": 5e-3}},
    "full": {"method": "full", "hyperparameters": {"learning_rate": 1e-3}},
    **{
        format: {"method": "qlora", "quantization": format, "hyperparameters": {"learning_rate": 5e-3}}
        for format in ("nf4", "fp4", "int8")
    },
    "loftq": {
        "method": {"type": "qlora", "init": "loftq"},
        "quantization": "nf4",
        "hyperparameters": {"learning_rate": 5e-3},
    },
}
MLX, DEEPSPEED = (
    pytest.param(name, marks=[pytest.mark.backends, pytest.mark.timeout(600)]) for name in ("mlx", "deepspeed")
)
Train = Callable[[str, str], Ran]
"""(kind, backend) -> the run, made once."""


@pytest.fixture(scope="module")
def jobs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    folder = tmp_path_factory.mktemp("same-rows")
    rows = equal_rows(tiny_model)
    write_rows(folder / "rows" / "rows.arrow", Port.SFT, rows)
    return Jobs(tiny_model, {Port.SFT: folder / "rows"}, folder / "locks")


def equal_rows(base: Path) -> list[Row]:
    """Conversations of one number of tokens."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    of_length: defaultdict[int, list[Row]] = defaultdict(list)
    for number in range(100):
        row = conversation(f"What does node {number} read?", f"Node {number} reads {number * 7} pairs.")
        ((example,), _) = encode_sft([row], tokenizer, 512)
        of_length[len(example["input_ids"])].append(row)
    return next(rows[:ROWS] for rows in of_length.values() if len(rows) >= ROWS)


@pytest.fixture(scope="module")
def first_adapter(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter whose matrices are both not zero any more, so that all of them are seen to arrive."""
    hyper = {"max_steps": 3, "batch_size": ROWS, "learning_rate": 5e-3, "seed": 3}
    return train_here(jobs(backend="native", hyperparameters=hyper), tmp_path_factory.mktemp("first")).folder


@pytest.fixture(scope="module")
def trained(jobs: Jobs, first_adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    cache: dict[tuple[str, str], Ran] = {}

    def train(kind: str, backend: str) -> Ran:
        if (kind, backend) not in cache:
            here = backend in ("native", "trl")
            run = train_here if here else train_as_child
            cache[kind, backend] = run(make_job(kind, backend), tmp_path_factory.mktemp(f"{kind}-{backend}"))
        return cache[kind, backend]

    def make_job(kind: str, backend: str) -> Any:
        kind_config = KINDS[kind]
        hyper = {
            "max_steps": STEPS,
            "batch_size": ROWS,
            "max_length": 64,
            "warmup_ratio": 0.1,
            **kind_config["hyperparameters"],
        }
        adapter = first_adapter if kind == "continued" else None
        return jobs(adapter=adapter, **{**kind_config, "backend": backend, "hyperparameters": hyper})

    return train


@pytest.fixture(autouse=True)
def environments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cached environments of the checkout, named as an operator would name his own."""
    if request.node.get_closest_marker("backends") is None:
        return
    missing = [name for name in ("mlx", "deepspeed") if not (ENVIRONMENTS / name / "bin" / "python").exists()]
    if missing:
        pytest.skip(f"no environment for {missing[0]}: run `trainyard backends install {missing[0]}`")
    named = {name: str(ENVIRONMENTS / name) for name in ("mlx", "deepspeed")}
    monkeypatch.setenv("TRAINYARD_BACKEND_ENVS", json.dumps(named))


def logits(jobs: Jobs, ran: Ran) -> torch.Tensor:
    """What the trained model says of some tokens; an adapter is loaded by PEFT and summed into the base."""
    ids_BT = torch.randint(5, 300, (3, 24), generator=torch.Generator().manual_seed(0))
    adapter = ran.folder.name == "adapter"
    folder = jobs.model if adapter else ran.folder
    model: Any = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, dtype=torch.float32)
    if adapter:
        model = PeftModel.from_pretrained(model, ran.folder).merge_and_unload(safe_merge=True)
    with torch.no_grad():
        return model.eval()(input_ids=ids_BT).logits


def losses(ran: Ran) -> list[float]:
    return [loss for _, loss, _ in ran.record["losses"]]


def rates(ran: Ran) -> list[float]:
    return [rate for _, _, rate in ran.record["losses"]]


@pytest.mark.parametrize("backend", ["trl", MLX, DEEPSPEED])
@pytest.mark.parametrize("kind", ["continued", "full"])
def test_backend_has_the_curve_and_the_model_of_the_native_engine(
    kind: str, backend: str, trained: Train, jobs: Jobs
) -> None:
    native, ran = trained(kind, "native"), trained(kind, backend)
    assert losses(native)[-1] < losses(native)[0] - 0.5
    assert losses(ran) == pytest.approx(losses(native), abs=SAME_LOSS)
    assert rates(ran) == pytest.approx(rates(native), abs=SAME_RATE)
    assert ran.record["tokens"] == native.record["tokens"]
    torch.testing.assert_close(logits(jobs, ran), logits(jobs, native), atol=SAME_LOGIT, rtol=0)


@pytest.mark.parametrize("backend", ["trl", MLX, DEEPSPEED])
def test_new_adapter_begins_at_the_base_and_has_the_shape_of_the_native_one(
    backend: str, trained: Train, jobs: Jobs
) -> None:
    """The first two losses: the rate of the first step is zero, as the warm-up starts there."""
    native, ran = trained("new", "native"), trained("new", backend)
    assert losses(ran)[:2] == pytest.approx(losses(native)[:2], abs=SAME_LOSS)
    assert losses(ran)[-1] < losses(ran)[0] - 0.5
    assert logits(jobs, ran).shape == logits(jobs, native).shape
    backend_config, native_config = (
        json.loads((training.folder / "adapter_config.json").read_text()) for training in (ran, native)
    )
    for name in ("r", "lora_alpha", "peft_type", "task_type", "use_dora", "use_rslora"):
        assert backend_config[name] == native_config[name], name


@pytest.mark.parametrize("backend", ["trl", DEEPSPEED])
def test_new_adapter_is_drawn_as_the_native_one(backend: str, trained: Train, jobs: Jobs) -> None:
    native, ran = trained("new", "native"), trained("new", backend)
    assert losses(ran) == pytest.approx(losses(native), abs=SAME_LOSS)
    torch.testing.assert_close(logits(jobs, ran), logits(jobs, native), atol=SAME_LOGIT, rtol=0)


@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8", "loftq"])
def test_trl_trains_through_a_quantised_base_as_the_native_engine(kind: str, trained: Train) -> None:
    native, ran, plain = trained(kind, "native"), trained(kind, "trl"), trained("new", "native")
    assert losses(native)[-1] < losses(native)[0] - 0.5
    assert losses(ran) == pytest.approx(losses(native), abs=SAME_QUANTISED_LOSS)
    assert losses(native)[0] != pytest.approx(losses(plain)[0], abs=SAME_LOSS)  # the base is not the same any more
    backend_weights, native_weights = (
        load_file(training.folder / "adapter_model.safetensors") for training in (ran, native)
    )
    assert backend_weights.keys() == native_weights.keys()
    assert {tensor.dtype for tensor in backend_weights.values()} == {
        torch.float32
    }  # TRL would round the adapter to bf16
    for record in (ran.record, native.record):
        assert record["quantization"] == KINDS[kind]["quantization"]
        assert record["versions"]["bitsandbytes"] == version("bitsandbytes")
    assert plain.record["quantization"] is None
    assert "bitsandbytes" not in plain.record["versions"]


def test_trained_adapter_says_the_same_after_every_layout(first_adapter: Path, jobs: Jobs, tmp_path: Path) -> None:
    """As PEFT left it, through the files of mlx-lm and of llama.cpp, and back: not a bit of it is another."""
    convert(first_adapter, tmp_path / "mlx", Layout.MLX)
    convert(tmp_path / "mlx", tmp_path / "adapter.gguf", Layout.GGUF, jobs.model)
    convert(tmp_path / "adapter.gguf", tmp_path / "adapter", Layout.PEFT, jobs.model)
    assert torch.equal(logits(jobs, Ran(tmp_path / "adapter", [])), logits(jobs, Ran(first_adapter, [])))


def test_curves_and_models_are_not_the_same_by_themselves(trained: Train, jobs: Jobs) -> None:
    """Of other first weights they differ by far more than is allowed: the comparisons above can fail."""
    continued, new = trained("continued", "native"), trained("new", "native")
    apart = [abs(loss - other_loss) for loss, other_loss in zip(losses(continued), losses(new), strict=True)]
    assert max(apart) > 1000 * SAME_LOSS
    assert float((logits(jobs, continued) - logits(jobs, new)).abs().max()) > 1000 * SAME_LOGIT
