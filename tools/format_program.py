"""`python -m tools.format_program FORMAT BASE FOLDER`: train through a quantization format, save, load, and report.

The program of `tests/unit/train/test_quantization_formats.py`, in an interpreter that has the format's package. It
trains as a chain does, by the native engine; the report is JSON on the last line of standard output.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # its default on a machine with two cores is one, which it refuses

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.small_jobs import Jobs, Ran, train_here, write_data
from trainyard.loading import load_object
from trainyard.spec.axes.quantization import Quantization
from trainyard.train.model.precision import convert_to_fp8
from trainyard.train.quantization import CPU, align_train_eval, convert, load_config, read_stored_config

STEPS, ROWS = 3, 32
"""All rows are in each step, so that the loss of a step is that of its weights on the same rows."""
GROUP = 32
"""Weights that share a scale in a base that is quantised beforehand: it divides the sizes of a tiny model."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbours is in which four bits of a word (AutoAWQ, `GEMM`)."""
LINEAR = ("_proj.weight",)


def run(format: Quantization, base: Path, folder: Path) -> dict[str, Any]:
    """Train three steps through the format, save, load, and continue; the report has the comparison."""
    model = PREPARED[format](base, folder / "base") if format in PREPARED else base
    jobs = Jobs(model, write_data(folder / "data"), folder / "locks")

    def train(name: str, steps: int, adapter: Path | None = None) -> Ran:
        hyper = {"max_steps": steps, "batch_size": ROWS, "schedule": "constant", "learning_rate": 1e-2}
        method = {"type": "qlora", "dropout": 0.0, "rank": 8}
        config: dict[str, Any] = {"backend": "native", "method": method, "quantization": format.value}
        return train_here(jobs(adapter=adapter, hyperparameters=hyper, **config), folder / name)

    trained, longer = train("trained", STEPS), train("longer", STEPS + 1)
    continued = train("continued", 1, trained.folder)
    record = trained.record
    return {
        "losses": losses(trained),
        "next_loss": losses(longer)[STEPS],
        "reloaded_loss": losses(continued)[0],
        **compare_logits(format, model, base, trained.folder),
        "quantization": record["quantization"],
        "versions": record["versions"],
        "result": sorted(path.name for path in trained.folder.iterdir() if path.is_file()),
    }


def losses(ran: Ran) -> list[float]:
    return [loss for _, loss, _ in ran.record["losses"]]


def compare_logits(format: Quantization, base: Path, plain: Path, adapter: Path) -> dict[str, float]:
    """How far the logits of the base are from those in full precision, and how far PEFT's adapter then moves them."""
    options: dict[str, Any] = {"dtype": torch.float32, "device_map": {"": CPU}, "use_safetensors": True}
    if (config := load_config(format, CPU, read_stored_config(str(base)))) is not None:
        options["quantization_config"] = config
    model: Any = AutoModelForCausalLM.from_pretrained(base, **options)
    convert(model, format, CPU)
    align_train_eval(model)
    ids_BT = torch.arange(24).reshape(2, 12) + 5
    with torch.no_grad():
        before = model.eval()(ids_BT).logits
        after = PeftModel.from_pretrained(model, adapter).eval()(ids_BT).logits
        exact = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()(ids_BT).logits
    error = ((before - exact).square().mean() / exact.square().mean()).sqrt()
    return {"error": float(error), "moved": float((after - before).abs().max())}


# Bases that somebody has quantised


def quantise_gptq(base: Path, target: Path) -> Path:
    """By gptqmodel itself, from sample texts."""
    config = load_object("gptqmodel:QuantizeConfig")(bits=4, group_size=GROUP)
    model = load_object("gptqmodel:GPTQModel").load(str(base), config, device=CPU)
    texts = [f"Node {n} reads {n * 7} pairs of documents and writes the report of the night. " * 4 for n in range(32)]
    model.quantize(texts, batch_size=1)
    model.save(str(target))
    return with_tokenizer(base, target)


def quantise_awq(base: Path, target: Path) -> Path:
    """Round every linear layer of the blocks and pack it as AutoAWQ does: gptqmodel packs AWQ on CUDA only."""
    target.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in load_file(base / "model.safetensors").items():
        if name.endswith(LINEAR):
            tensors |= {f"{name.removesuffix('weight')}{part}": value for part, value in pack_awq(weight).items()}
        else:
            tensors[name] = weight.half()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip
    (target / "config.json").write_text(json.dumps(config))
    return with_tokenizer(base, target)


def pack_awq(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Weight (out, in) -> `qweight` (in, out / 8), `qzeros` (in / group, out / 8), `scales` (in / group, out)."""
    groups = weight.float().reshape(weight.shape[0], -1, GROUP)
    low, high = groups.amin(2), groups.amax(2)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales.float()).round().clamp(0, 15)
    rounded = ((groups / scales.float()[..., None]).round() + zeros[..., None]).clamp(0, 15).flatten(1)
    return {
        "qweight": pack_words(rounded.T.int()),
        "qzeros": pack_words(zeros.T.int()),
        "scales": scales.T.contiguous(),
    }


def pack_words(values: torch.Tensor) -> torch.Tensor:
    """Eight columns of four bits in a word."""
    blocks = values.reshape(values.shape[0], -1, 8)[..., list(AWQ_ORDER)].long()
    packed = (blocks << torch.arange(0, 32, 4)).sum(2)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int().contiguous()


def with_tokenizer(base: Path, target: Path) -> Path:
    for path in base.iterdir():
        if "token" in path.name or path.suffix == ".jinja":
            shutil.copyfile(path, target / path.name)
    return target


PREPARED: dict[Quantization, Callable[[Path, Path], Path]] = {
    Quantization.GPTQ: quantise_gptq,
    Quantization.AWQ: quantise_awq,
}


# Products in float8


def run_fp8(base: Path, folder: Path) -> dict[str, Any]:
    """Three steps with emulated products, as a CPU has no others; the weights are saved and loaded as float32."""
    torch.manual_seed(0)
    plain: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = convert_to_fp8(plain, emulate=True).train()
    rows = AutoTokenizer.from_pretrained(base)(["Node 7 reads 49 pairs of documents."] * 4, return_tensors="pt")
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(STEPS + 1):
        optimizer.zero_grad()
        logits_BTV = model(input_ids=rows["input_ids"]).logits
        loss = functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), rows["input_ids"][:, 1:].flatten())
        losses.append(float(loss.detach()))
        if len(losses) <= STEPS:
            loss.backward()
            optimizer.step()
    model.save_pretrained(folder / "saved")
    again: Any = convert_to_fp8(AutoModelForCausalLM.from_pretrained(folder / "saved"), emulate=True).train()
    logits_BTV = again(input_ids=rows["input_ids"]).logits
    reloaded = functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), rows["input_ids"][:, 1:].flatten())
    layers = sum(type(module).__name__ == "Float8Linear" for module in again.modules())
    dtypes = sorted({str(value.dtype) for value in load_file(folder / "saved" / "model.safetensors").values()})
    return {
        "losses": losses[:STEPS], "next_loss": losses[STEPS], "reloaded_loss": float(reloaded.detach()),
        "layers": layers, "dtypes": dtypes,
    }  # fmt: skip


def main(format: str, base: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    quantization = Quantization(format)
    run_format = run_fp8 if quantization is Quantization.FP8 else lambda *paths: run(quantization, *paths)
    print(json.dumps(run_format(Path(base), Path(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
