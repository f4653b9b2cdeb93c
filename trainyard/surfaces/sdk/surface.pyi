"""Types of the operations as methods, written by `python -m docs.generator` from the table of operations."""

from builtins import list as list_
from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from pydantic.fields import FieldInfo
from trainyard.app.access.audit import AuditCheck, AuditRows
from trainyard.app.access.tokens import NewToken, Token, TokenList
from trainyard.app.chat import AskedAnswer
from trainyard.app.adapters.register import Registered
from trainyard.app.adapters.registry import AdapterRows, Converted
from trainyard.app.adapters.versions import Card, DeletedVersion, Merged, Promotion, Published, Pulled
from trainyard.app.artifacts.artifacts import ArtifactDetail, ArtifactList, ArtifactRows
from trainyard.app.backends.backends import BackendTable
from trainyard.app.plan.check import CheckOutput
from trainyard.app.chains.compare import Comparison
from trainyard.app.chains.describe import ShownSchema, TemplateRows
from trainyard.app.chains.drafts import ExpandedChain, LinkAnswers, Palette
from trainyard.app.chains.eject import EjectOutput
from trainyard.app.chains.exports import ExportOutput
from trainyard.app.chains.imports import ImportOutput
from trainyard.app.chains.stored import RevisionDiff
from trainyard.app.chains.stored import ChainDetail, ChainList, ChainRun, DeletedChain, RunsOfChain
from trainyard.app.chat import ChatOutput
from trainyard.app.dashboard import DashboardLink
from trainyard.app.data.listing import DataColumns
from trainyard.app.data.listing import DataList, ModelList
from trainyard.app.data.preview import DataPreview
from trainyard.app.data.renderers import RendererTable
from trainyard.app.data.uploads import DeletedUpload, UploadedFile
from trainyard.app.evaluations import Evaluation, EvaluationList
from trainyard.app.gpus import GpuList
from trainyard.app.graph.graph import Exported, GraphCounts, QueryRows
from trainyard.app.graph.neighbors import EntityList, Neighbors
from trainyard.app.jobs.checkpoints import CheckpointList, VerifiedCheckpoints
from trainyard.app.jobs.jobs import Job, JobDetail, JobList, JobMetrics
from trainyard.app.jobs.logs import JobLog
from trainyard.app.jobs.nodes import NodeDetail, RunNodes
from trainyard.app.jobs.provenance import Provenance
from trainyard.app.jobs.samples import JobSamples
from trainyard.app.machine_settings import MachineSettingList
from trainyard.app.night_reports import NightDetail, NightList
from trainyard.app.nights import Added, CorpusStatus, NightStatus, Simulated, Worked
from trainyard.app.plan.resolve import ChainPlan
from trainyard.app.responses import Blob, Record
from trainyard.app.run_records import RunResult
from trainyard.app.scripts import ScriptDraft, TrainingScriptList, TrainingScriptText
from trainyard.app.sessions.calls import BackwardReply, ForwardReply, GenerateReply, LoadReply, LogprobsReply, Operated, ResultReply, SaveReply, StepReply
from trainyard.app.sessions.life import SessionInfo, SessionList
from trainyard.app.stack.backup import BackedUp, Restored
from trainyard.app.stack.demo import DemoResult
from trainyard.app.stack.doctor import Diagnosis
from trainyard.app.stack.gc import Collected
from trainyard.app.stack.proof import Proof
from trainyard.app.stack.stack import DownOutput, EnvOutput, Migration, UpOutput
from trainyard.app.sweeps.show import SweepList, SweepReport
from trainyard.night.report import NightReport
from trainyard.operations.adapters import EarlierTurn
from trainyard.serve.conversion.architectures import Layout
from trainyard.spec.axes.backends import BackendName, ServerName
from trainyard.spec.axes.data import DataFormat, Port
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.stages import Stage
from trainyard.spec.states import JobState
from trainyard.surfaces.mcp.stdio import McpEnded
from trainyard.surfaces.serve import Served
from typing import Any, Literal

class SweepOperations:
    def __call__(self, *, file: Path | None = ..., chain: str | None = ..., parameters: dict[str, Any] = ..., trials: int = ..., metric: str | None = ..., direction: Literal['min', 'max'] | None = ..., scheduler: Literal['asha', 'none'] = ..., sampler: Literal['tpe', 'random', 'grid'] = ..., seed: int = ..., reduction: int = ..., first_rung: int | None = ..., parallel: int = ..., trainer: str | None = ..., name: str | None = ..., continued: str | None = ..., watch: bool = ...) -> SweepReport: ...  # run
    def show(self, *, name: str, best: bool = ..., plot: bool = ...) -> SweepReport: ...  # read
    def list(self) -> SweepList: ...  # read
    def stop(self, *, name: str) -> SweepReport: ...  # run

class ChainsOperations:
    def list(self, *, name: str | None = ..., limit: int = ..., offset: int = ...) -> ChainList: ...  # read
    def create(self, *, file: Path | None = ..., spec: dict[str, Any] = ...) -> ChainDetail: ...  # run
    def show(self, *, chain: str, revision: int | None = ...) -> ChainDetail: ...  # read
    def update(self, *, chain: str, file: Path | None = ..., spec: dict[str, Any] = ..., if_match: str = ...) -> ChainDetail: ...  # run
    def delete(self, *, chain: str) -> DeletedChain: ...  # run
    def run(self, *, chain: str, revision: int | None = ..., parameters: dict[str, Any] = ..., watch: bool = ..., refresh: bool = ..., refresh_from: str | None = ..., yes: bool = ..., tags: tuple[str, ...] = ..., group: str = ...) -> ChainRun: ...  # run
    def runs(self, *, chain: str, limit: int = ..., offset: int = ...) -> RunsOfChain: ...  # read
    def palette(self) -> Palette: ...  # read
    def expand(self, *, target: str | dict[str, Any] | None = ..., parameters: dict[str, Any] = ..., text: str = ...) -> ExpandedChain: ...  # read
    def links(self, *, target: str | dict[str, Any], node: str) -> LinkAnswers: ...  # read
    def diff(self, *, chain: str, before: int, after: int | None = ...) -> RevisionDiff: ...  # read

class AdaptersOperations:
    def list(self, *, tenant: str | None = ...) -> AdapterRows: ...  # read
    def show(self, *, name: str) -> Record: ...  # read
    def register(self, *, job: str, role: str, promote: bool = ..., targets: tuple[str, ...] = ...) -> Registered: ...  # run
    def convert(self, *, source: str, target: Path, to: Layout, base: str | None = ...) -> Converted: ...  # run
    def promote(self, *, name: str, targets: tuple[str, ...] = ...) -> Promotion: ...  # run
    def rollback(self, *, role: str, targets: tuple[str, ...] = ...) -> Promotion: ...  # run
    def delete_version(self, *, name: str, force: bool = ...) -> DeletedVersion: ...  # run
    def merge(self, *, name: str, target: Path | None = ..., to: str = ..., dtype: Literal['auto', 'float32', 'bfloat16', 'float16'] = ...) -> Merged: ...  # run
    def card(self, *, name: str, out: Path | None = ...) -> Card: ...  # read
    def ask(self, *, adapter: str, question: str, turns: tuple[EarlierTurn, ...] = ..., system: str = ..., max_tokens: int = ..., temperature: float = ..., seed: int = ...) -> AskedAnswer: ...  # run
    def push(self, *, name: str, to: str = ..., public: bool = ..., revision: str | None = ..., token_env: str = ...) -> Published: ...  # run
    def pull(self, *, source: str, alias: str | None = ..., revision: str | None = ..., token_env: str = ...) -> Pulled: ...  # run

class BackendsOperations:
    def __call__(self, *, imports: bool = ...) -> BackendTable: ...  # read
    def install(self, *, names: tuple[BackendName | ServerName, ...] = ..., background: bool = ...) -> BackendTable: ...  # admin
    def cancel(self, *, name: BackendName | ServerName) -> BackendTable: ...  # admin
    def test(self, *, name: BackendName, watch: bool = ...) -> RunResult: ...  # run

class ScriptsOperations:
    def list(self) -> TrainingScriptList: ...  # read
    def show(self, *, name: str) -> TrainingScriptText: ...  # read
    def save(self, *, name: str, file: Path | None = ..., text: str = ..., if_match: str = ...) -> TrainingScriptText: ...  # admin
    def draft(self, *, target: str | dict[str, Any], parameters: dict[str, Any] = ..., node: str | None = ...) -> ScriptDraft: ...  # read

class JobsOperations:
    def create(self, *, file: Path | None = ..., parameters: dict[str, Any] = ..., watch: bool = ..., yes: bool = ..., group: str = ...) -> RunResult: ...  # run
    def list(self, *, state: JobState | None = ..., name: str | None = ..., tenant: str | None = ..., backend: BackendName | None = ..., stage: Stage | None = ..., group: str | None = ..., text: str | None = ..., limit: int = ..., cursor: str | None = ...) -> JobList: ...  # read
    def show(self, *, job: str) -> JobDetail: ...  # read
    def nodes(self, *, job: str) -> RunNodes: ...  # read
    def node(self, *, job: str, node: str) -> NodeDetail: ...  # read
    def logs(self, *, job: str, follow: bool = ..., tail: int | None = ..., source: str | None = ..., offset: int | None = ..., before: int | None = ..., limit_bytes: int = ...) -> JobLog: ...  # read
    def metrics(self, *, job: str, node: str | None = ..., max_points: int | None = ..., since_step: int | None = ..., until_step: int | None = ..., plot: bool = ...) -> JobMetrics: ...  # read
    def note(self, *, job: str, text: str = ...) -> Job: ...  # run
    def pause(self, *, job: str, wait: bool = ...) -> Job: ...  # run
    def resume(self, *, job: str, parameters: dict[str, Any] = ..., watch: bool = ...) -> Job | RunResult: ...  # run
    def cancel(self, *, job: str, wait: bool = ...) -> Job: ...  # run
    def retry(self, *, job: str, refresh: bool = ..., watch: bool = ...) -> RunResult: ...  # run
    def checkpoints(self, *, job: str, node: str | None = ...) -> CheckpointList: ...  # read
    def verify(self, *, job: str, node: str | None = ..., checkpoint: str | None = ...) -> VerifiedCheckpoints: ...  # read
    def samples(self, *, job: str, node: str | None = ..., step: int | None = ..., limit: int = ...) -> JobSamples: ...  # read
    def provenance(self, *, job: str) -> Provenance: ...  # read

class SessionsOperations:
    def create(self, *, file: Path | None = ..., parameters: dict[str, Any] = ..., wait: bool = ...) -> SessionInfo: ...  # run
    def list(self, *, limit: int = ...) -> SessionList: ...  # read
    def show(self, *, session: str) -> SessionInfo: ...  # read
    def heartbeat(self, *, session: str) -> SessionInfo: ...  # run
    def close(self, *, session: str) -> SessionInfo: ...  # run
    def resume(self, *, session: str, wait: bool = ...) -> SessionInfo: ...  # run
    def forward(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., rows: tuple[str | dict[str, Any], ...] = ..., batch: dict[str, Any] = ..., tensors: bytes | None = ..., normalizer: float | None = ..., outputs: tuple[Literal['logits', 'hidden_states'], ...] = ...) -> ForwardReply: ...  # run
    def backward(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., forward_id: str, scale: float = ..., measure: bool = ...) -> BackwardReply: ...  # run
    def step(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., max_grad_norm: float | None = ..., learning_rate: float | None = ..., metric: float | None = ...) -> StepReply: ...  # run
    def zero_grad(self, *, session: str, op_seq: int | None = ..., wait: bool = ...) -> Operated: ...  # run
    def generate(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., prompts: tuple[str | list_[int] | dict[str, Any], ...], samples: int = ..., max_new_tokens: int = ..., temperature: float = ..., top_p: float = ..., seed: int = ..., stop_ids: tuple[int, ...] = ...) -> GenerateReply: ...  # run
    def logprobs(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., rows: tuple[str | list_[int] | dict[str, Any], ...]) -> LogprobsReply: ...  # run
    def save(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., name: str, kind: Literal['full', 'weights', 'result'] = ...) -> SaveReply: ...  # run
    def load(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., name: str, optimizer: bool = ...) -> LoadReply: ...  # run
    def result(self, *, session: str, op_seq: int, wait: bool = ...) -> ResultReply: ...  # read
    def output(self, *, session: str, name: str) -> Blob: ...  # read

class DataOperations:
    def list(self, *, folder: str = ..., limit: int = ...) -> DataList: ...  # read
    def upload(self, *, file: Path | None = ..., name: str = ..., folder: str = ...) -> UploadedFile: ...  # run
    def delete(self, *, name: str) -> DeletedUpload: ...  # run
    def columns(self, *, path: str) -> DataColumns: ...  # read
    def preview(self, *, path: str, format: DataFormat | None = ..., columns: dict[str, Any] = ..., base_model: str | None = ..., template: str = ..., max_length: int = ..., generate: bool = ..., count: int = ..., wordings: int = ..., rows: int = ..., limit: int = ...) -> DataPreview: ...  # read

class ArtifactsOperations:
    def list(self, *, run: str | None = ..., port: Port | None = ..., sha256: str | None = ..., tenant: str | None = ..., limit: int = ..., cursor: str | None = ...) -> ArtifactList: ...  # read
    def show(self, *, run: str, node: str, port: Port) -> ArtifactDetail: ...  # read
    def rows(self, *, run: str, node: str, port: Port, part: str = ..., offset: int = ..., limit: int = ..., reason: str | None = ..., text: str | None = ..., text_chars: int = ...) -> ArtifactRows: ...  # read

class EvaluationsOperations:
    def list(self, *, run: str | None = ..., tenant: str | None = ..., limit: int = ..., cursor: str | None = ...) -> EvaluationList: ...  # read
    def show(self, *, run: str, node: str = ...) -> Evaluation: ...  # read

class GraphOperations:
    def query(self, *, cypher: str, parameters: dict[str, Any] = ..., graph: str = ...) -> QueryRows: ...  # read
    def stats(self, *, tenant: str | None = ..., graph: str = ...) -> GraphCounts: ...  # read
    def entities(self, *, text: str = ..., kind: str = ..., tenant: str | None = ..., limit: int = ..., offset: int = ..., graph: str = ...) -> EntityList: ...  # read
    def neighbors(self, *, key: str, tenant: str | None = ..., limit: int = ..., graph: str = ...) -> Neighbors: ...  # read
    def export(self, *, tenant: str | None = ..., graph: str = ..., file: Path) -> Exported: ...  # run

class NightlyOperations:
    def run(self, *, config: Path | None = ..., preset: str | None = ..., run: str | None = ..., again: bool = ...) -> NightReport: ...  # run
    def simulate(self, *, nights: int = ..., seed: int = ..., inject: str | None = ..., processes: int | None = ..., campaign: int | None = ...) -> Simulated: ...  # run
    def worker(self, *, config: Path | None = ..., preset: str | None = ..., once: bool = ...) -> Worked: ...  # admin
    def status(self, *, config: Path | None = ..., preset: str | None = ...) -> NightStatus: ...  # read
    def list(self, *, tenant: str | None = ..., limit: int = ...) -> NightList: ...  # read
    def show(self, *, night: str, tenant: str | None = ...) -> NightDetail: ...  # read

class CorpusOperations:
    def engineering(self, *, repo: Path, bucket: str | None = ..., briefs: Path | None = ..., config: Path | None = ...) -> Added: ...  # run
    def apprenticeship(self, *, action: Literal['add'] = ..., file: Path | None = ..., prompt: str | None = ..., shadow: str | None = ..., verdict: str | None = ..., bucket: str | None = ..., config: Path | None = ...) -> Added: ...  # run
    def status(self, *, config: Path | None = ..., preset: str | None = ...) -> CorpusStatus: ...  # read

class RenderersOperations:
    def verify(self, *, names: tuple[str, ...] = ...) -> RendererTable: ...  # read

class StarterOperations:
    def build(self) -> Record: ...  # admin

class TokensOperations:
    def create(self, *, name: str, scope: Literal['read', 'run', 'admin'] = ..., tenant: str | None = ..., days: int = ...) -> NewToken: ...  # admin
    def list(self) -> TokenList: ...  # admin
    def revoke(self, *, name: str) -> Token: ...  # admin

class AuditOperations:
    def list(self, *, caller: str | None = ..., operation: str | None = ..., tenant: str | None = ..., outcome: str | None = ..., hours: float | None = ..., limit: int = ...) -> AuditRows: ...  # admin
    def verify(self) -> AuditCheck: ...  # admin

class Operations:
    def up(self, *, port: int | None = ..., no_auth: bool = ..., expose: bool = ..., host: str | None = ..., tls_cert: Path | None = ..., tls_key: Path | None = ..., behind_proxy: str | None = ..., allow_host: tuple[str, ...] = ...) -> UpOutput: ...  # admin
    def down(self) -> DownOutput: ...  # admin
    def demo(self) -> DemoResult: ...  # admin
    def dashboard(self) -> DashboardLink: ...  # admin
    def env(self) -> EnvOutput: ...  # admin
    def settings(self) -> MachineSettingList: ...  # admin
    def doctor(self) -> Diagnosis: ...  # read
    def migrate(self, *, dry_run: bool = ...) -> Migration: ...  # run
    def gc(self, *, days: int = ..., dry_run: bool = ...) -> Collected: ...  # admin
    def backup(self, *, file: Path, with_models: bool = ...) -> BackedUp: ...  # admin
    def restore(self, *, file: Path) -> Restored: ...  # admin
    def check(self, *, files: tuple[Path | dict[str, Any], ...]) -> CheckOutput: ...  # read
    def plan(self, *, target: str | dict[str, Any], parameters: dict[str, Any] = ..., preset: str | None = ..., measure: bool = ...) -> ChainPlan: ...  # read
    def run(self, *, target: str | dict[str, Any], parameters: dict[str, Any] = ..., preset: str | None = ..., watch: bool = ..., refresh: bool = ..., refresh_from: str | None = ..., yes: bool = ..., tags: tuple[str, ...] = ..., group: str = ...) -> RunResult: ...  # run
    @property
    def sweep(self) -> SweepOperations: ...
    def compare(self, *, job: tuple[str, ...], plot: bool = ...) -> Comparison: ...  # read
    def templates(self, *, name: str | None = ...) -> TemplateRows: ...  # read
    @property
    def chains(self) -> ChainsOperations: ...
    def schema(self, *, name: str | None = ...) -> ShownSchema: ...  # read
    def prove_resume(self, *, everything: bool = ..., stages: tuple[Stage, ...] = ..., methods: tuple[Method, ...] = ..., jobs: int = ...) -> Proof: ...  # run
    def serve(self, *, job: str | None = ..., role: Literal['training', 'graph', 'model'] | None = ..., host: str = ..., port: int | None = ..., tls_cert: Path | None = ..., tls_key: Path | None = ..., behind_proxy: str | None = ..., allow_host: tuple[str, ...] = ..., no_auth: bool = ..., graph: str = ..., model: tuple[str, ...] = ..., adapters: tuple[str, ...] = ..., dtype: Literal['float32', 'bfloat16'] | None = ..., threads: int | None = ...) -> Served: ...  # admin
    def mcp(self, *, scope: Literal['read', 'run', 'admin'] = ...) -> McpEnded: ...  # admin
    def chat(self, *, adapter: str, questions: tuple[str, ...] = ..., system: str = ..., max_tokens: int = ..., temperature: float = ..., seed: int = ...) -> ChatOutput: ...  # run
    def eject(self, *, target: str, node: str | None = ..., into: Path | None = ...) -> EjectOutput: ...  # run
    def import_(self, *, source: Path, tool: Literal['axolotl', 'llamafactory', 'trl', 'unsloth', 'oumi', 'torchtune'] | None = ..., settings: dict[str, Any] = ..., without: tuple[str, ...] = ..., out: Path | None = ..., report: bool = ...) -> ImportOutput: ...  # run
    def export(self, *, target: str, to: Literal['axolotl', 'llamafactory'], node: str | None = ..., out: Path | None = ...) -> ExportOutput: ...  # run
    @property
    def adapters(self) -> AdaptersOperations: ...
    @property
    def backends(self) -> BackendsOperations: ...
    @property
    def scripts(self) -> ScriptsOperations: ...
    @property
    def jobs(self) -> JobsOperations: ...
    @property
    def sessions(self) -> SessionsOperations: ...
    def gpus(self) -> GpuList: ...  # read
    def models(self) -> ModelList: ...  # read
    @property
    def data(self) -> DataOperations: ...
    @property
    def artifacts(self) -> ArtifactsOperations: ...
    @property
    def evaluations(self) -> EvaluationsOperations: ...
    @property
    def graph(self) -> GraphOperations: ...
    @property
    def nightly(self) -> NightlyOperations: ...
    @property
    def corpus(self) -> CorpusOperations: ...
    @property
    def renderers(self) -> RenderersOperations: ...
    @property
    def starter(self) -> StarterOperations: ...
    @property
    def tokens(self) -> TokensOperations: ...
    @property
    def audit(self) -> AuditOperations: ...

Call = Callable[[str, dict[str, Any]], Any]

class Surface(Operations):
    def __init__(self, call: Call, word: str = "") -> None: ...

def words_after(word: str) -> list[str]: ...
def attribute_of(word: str) -> str: ...
def call_here(name: str, fields: dict[str, Any]) -> Any: ...
def checked_request(name: str, fields: dict[str, Any]) -> Any: ...
def parameter(name: str, field: FieldInfo) -> Parameter: ...

here: Surface
