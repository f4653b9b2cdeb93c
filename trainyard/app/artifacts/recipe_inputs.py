"""The inputs of a recorded training: its rows read again from their source, or a stored copy, each with its digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.app.responses import Response
from trainyard.backends.recipe import Recipe, RecipeInput
from trainyard.callbacks import ignore
from trainyard.data.paths import data_roots, resolve_inside
from trainyard.data.sources import read_source
from trainyard.data.validation import load_token_counter, validate
from trainyard.errors import Corrupt, NotFound, TrainyardError
from trainyard.settings import Settings
from trainyard.spec.axes.data import Port
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.nodes import DataSourceConfig, ValidatorConfig
from trainyard.spec.ports import ROW_PORTS
from trainyard.stores.adapters import files_digest
from trainyard.stores.artifacts import Produced, Reference
from trainyard.stores.models import ModelSource, resolve_model
from trainyard.stores.whole import describe_files

DATA_FOLDER = "data"
"""Of a bundle: the inputs of its trainings, each in a folder named by its digest."""


class CheckedInput(Response):
    """An input of a training, and whether it is what the ledger says."""

    role: str
    """`data/sft`, `base`, `adapter`, …"""
    recorded: str
    """SHA-256."""
    sha256: str
    """Of what is here."""
    how: str
    """How it was obtained: read again from its source, trained again, a stored copy, the base of a name."""

    @property
    def matches(self) -> bool:
        return self.recorded == self.sha256


@dataclass(frozen=True)
class InputStore:
    """Where stored inputs are looked for: below the home, then in a bundle."""

    settings: Settings
    bundle: Path | None = None

    def find(self, item: RecipeInput) -> Path | None:
        """Return the folder of a stored input with the recorded digest; None if there is none."""
        here = self.settings.home / item.place if item.place and self.bundle is None else None
        carried = self.bundle / DATA_FOLDER / item.sha256 if self.bundle else None
        for folder in (here, carried):
            if folder is None or not folder.is_dir():
                continue
            if digest_folder(folder) == item.sha256:
                return folder
            if folder == carried:
                raise Corrupt(
                    f"{item.role} in the bundle has other bytes than the ledger says: {item.sha256}.",
                    why="It was changed after the bundle was exported.",
                    do="Ask its owner for the bundle again.",
                    code="E-CORRUPT",
                )
        return None


def digest_folder(folder: Path) -> str:
    return files_digest(describe_files(folder))


def missing_input(item: RecipeInput, why: str) -> NotFound:
    return NotFound(
        f"{item.role} with the digest {item.sha256} is not here, so the training cannot be carried out again.",
        why=why,
        do="Put its files back, or give --bundle FOLDER of an export with --data.",
        code="E-NOT-FOUND",
    )


def find_base(item: RecipeInput, name: str, settings: Settings) -> ModelSource:
    """Return the base of a training. Raises `NotFound` or `Corrupt` with the digest that it has to have."""
    do = f"Give --base FOLDER of the model whose files have the digest {item.sha256}."
    try:
        source = resolve_model(name, settings)
    except NotFound as error:
        raise NotFound(
            f"The {item.role} {name!r} with the digest {item.sha256} is not here.",
            why=error.what, do=do, code="E-MODEL-NOT-FOUND",
        ) from error  # fmt: skip
    if source.path is None:
        raise NotFound(
            f"The {item.role} {name!r} with the digest {item.sha256} is not on this machine.",
            why="Nothing is downloaded by this command.", do=f"Download it first. {do}", code="E-MODEL-NOT-FOUND",
        )  # fmt: skip
    if source.sha256 != item.sha256:
        raise Corrupt(
            f"The {item.role} {name!r} is another one: its files have the digest {source.sha256}.",
            why=f"The training had {item.sha256}.", do=do, code="E-CORRUPT",
        )  # fmt: skip
    return source


# Rows


@dataclass
class RowReader:
    """Reads the rows of a training again, through its data source and validator; both need no model's answers."""

    recipe: Recipe
    settings: Settings
    base: Path
    folder: Path
    chain: ResolvedChain | None = field(init=False)
    outputs: dict[str, dict[Port, Reference]] = field(default_factory=dict)
    """Of the nodes that were made again."""

    def __post_init__(self) -> None:
        self.chain = ResolvedChain.model_validate(self.recipe.chain) if self.recipe.chain else None

    def read(self, port: Port) -> tuple[Path | None, str]:
        """Return the folder of the rows, or None and why they are not read again."""
        if self.chain is None:
            return None, "a night's rows are made from a corpus that grows; its stored rows are used"
        source = self.chain.node(self.recipe.node).inputs.get(port, ())
        if not source:
            return None, f"the chain has no edge for {port.value}"
        try:
            return self.make(self.chain.node(source[0].node_id), self.chain)[port].path, ""
        except NotRead as error:
            return None, str(error)
        except TrainyardError as error:
            return None, f"the source cannot be read here: {error.what}"

    def make(self, node: ResolvedNode, chain: ResolvedChain) -> dict[Port, Reference]:
        """Return the outputs of a node, made again. Raises `NotRead` for one whose result a model has made."""
        if node.id in self.outputs:
            return self.outputs[node.id]
        target = self.folder / node.id
        target.mkdir(parents=True, exist_ok=True)
        config = node.config
        if isinstance(config, DataSourceConfig):
            produced = read_source(config, target, settings=self.settings, report=ignore)
            self.outputs[node.id] = dict(list_references(produced, target))
        elif isinstance(config, ValidatorConfig):
            self.outputs[node.id] = dict(self.validate(node, config, chain, target))
        else:
            raise NotRead(f"its rows were made by the {node.type} {node.id}, which may ask a model")
        return self.outputs[node.id]

    def validate(
        self, node: ResolvedNode, config: ValidatorConfig, chain: ResolvedChain, target: Path
    ) -> Iterator[tuple[Port, Reference]]:
        roots = data_roots(self.settings)
        paths = (resolve_inside(path, roots, field="config.evaluation_sets") for path in config.evaluation_sets)
        config = config.model_copy(update={"evaluation_sets": tuple(map(str, paths))})
        inputs: dict[Port, Reference] = {}
        for port, sources in node.inputs.items():
            outputs = (self.make(chain.node(source.node_id), chain).get(port) for source in sources)
            if (nearest := next((reference for reference in outputs if reference is not None), None)) is not None:
                inputs[port] = nearest
        tokenizer = resolve_model(config.tokenizer, self.settings).path if config.tokenizer else self.base
        documents = inputs.get(Port.DOCUMENTS)
        for port in (port for port in ROW_PORTS if port in inputs):
            produced = validate(
                config, inputs[port], target,
                tokens=load_token_counter(tokenizer or self.base), documents=documents.path if documents else None,
                report=ignore,
            )  # fmt: skip
            yield from list_references(produced, target)


class NotRead(Exception):
    """Rows that are not made again, and why."""


def list_references(produced: Produced, folder: Path) -> Iterator[tuple[Port, Reference]]:
    """Yield each port of a result with the digest of its files."""
    for port, part in produced.outputs.items():
        path = folder / part.folder
        files = describe_files(path)
        yield port, Reference(
            uri=f"file://{path}", sha256=files_digest(files), kind=port, rows=part.rows,
            bytes=sum(int(entry["bytes"]) for entry in files.values()), facts=part.facts,
        )  # fmt: skip
