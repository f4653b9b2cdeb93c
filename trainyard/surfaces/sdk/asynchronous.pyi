"""Types of the operations as methods, written by `python -m docs.generator` from the table of operations."""

from builtins import list as list_
from httpx import AsyncClient
from pathlib import Path
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
from trainyard.surfaces.sdk.surface import Call
from trainyard.surfaces.serve import Served
from types import TracebackType
from typing import Any, Literal, Self

class AsyncSweepOperations:
    async def __call__(self, *, file: Path | None = ..., chain: str | None = ..., parameters: dict[str, Any] = ..., trials: int = ..., metric: str | None = ..., direction: Literal['min', 'max'] | None = ..., scheduler: Literal['asha', 'none'] = ..., sampler: Literal['tpe', 'random', 'grid'] = ..., seed: int = ..., reduction: int = ..., first_rung: int | None = ..., parallel: int = ..., trainer: str | None = ..., name: str | None = ..., continued: str | None = ..., watch: bool = ...) -> SweepReport: ...  # run
    async def show(self, *, name: str, best: bool = ..., plot: bool = ...) -> SweepReport: ...  # read
    async def list(self) -> SweepList: ...  # read
    async def stop(self, *, name: str) -> SweepReport: ...  # run

class AsyncChainsOperations:
    async def list(self, *, name: str | None = ..., limit: int = ..., offset: int = ...) -> ChainList: ...  # read
    async def create(self, *, file: Path | None = ..., spec: dict[str, Any] = ...) -> ChainDetail: ...  # run
    async def show(self, *, chain: str, revision: int | None = ...) -> ChainDetail: ...  # read
    async def update(self, *, chain: str, file: Path | None = ..., spec: dict[str, Any] = ..., if_match: str = ...) -> ChainDetail: ...  # run
    async def delete(self, *, chain: str) -> DeletedChain: ...  # run
    async def run(self, *, chain: str, revision: int | None = ..., parameters: dict[str, Any] = ..., watch: bool = ..., refresh: bool = ..., refresh_from: str | None = ..., yes: bool = ..., tags: tuple[str, ...] = ..., group: str = ...) -> ChainRun: ...  # run
    async def runs(self, *, chain: str, limit: int = ..., offset: int = ...) -> RunsOfChain: ...  # read
    async def palette(self) -> Palette: ...  # read
    async def expand(self, *, target: str | dict[str, Any] | None = ..., parameters: dict[str, Any] = ..., text: str = ...) -> ExpandedChain: ...  # read
    async def links(self, *, target: str | dict[str, Any], node: str) -> LinkAnswers: ...  # read
    async def diff(self, *, chain: str, before: int, after: int | None = ...) -> RevisionDiff: ...  # read

class AsyncAdaptersOperations:
    async def list(self, *, tenant: str | None = ...) -> AdapterRows: ...  # read
    async def show(self, *, name: str) -> Record: ...  # read
    async def register(self, *, job: str, role: str, promote: bool = ..., targets: tuple[str, ...] = ...) -> Registered: ...  # run
    async def convert(self, *, source: str, target: Path, to: Layout, base: str | None = ...) -> Converted: ...  # run
    async def promote(self, *, name: str, targets: tuple[str, ...] = ...) -> Promotion: ...  # run
    async def rollback(self, *, role: str, targets: tuple[str, ...] = ...) -> Promotion: ...  # run
    async def delete_version(self, *, name: str, force: bool = ...) -> DeletedVersion: ...  # run
    async def merge(self, *, name: str, target: Path | None = ..., to: str = ..., dtype: Literal['auto', 'float32', 'bfloat16', 'float16'] = ...) -> Merged: ...  # run
    async def card(self, *, name: str, out: Path | None = ...) -> Card: ...  # read
    async def ask(self, *, adapter: str, question: str, turns: tuple[EarlierTurn, ...] = ..., system: str = ..., max_tokens: int = ..., temperature: float = ..., seed: int = ...) -> AskedAnswer: ...  # run
    async def push(self, *, name: str, to: str = ..., public: bool = ..., revision: str | None = ..., token_env: str = ...) -> Published: ...  # run
    async def pull(self, *, source: str, alias: str | None = ..., revision: str | None = ..., token_env: str = ...) -> Pulled: ...  # run

class AsyncBackendsOperations:
    async def __call__(self, *, imports: bool = ...) -> BackendTable: ...  # read
    async def install(self, *, names: tuple[BackendName | ServerName, ...] = ..., background: bool = ...) -> BackendTable: ...  # admin
    async def cancel(self, *, name: BackendName | ServerName) -> BackendTable: ...  # admin
    async def test(self, *, name: BackendName, watch: bool = ...) -> RunResult: ...  # run

class AsyncScriptsOperations:
    async def list(self) -> TrainingScriptList: ...  # read
    async def show(self, *, name: str) -> TrainingScriptText: ...  # read
    async def save(self, *, name: str, file: Path | None = ..., text: str = ..., if_match: str = ...) -> TrainingScriptText: ...  # admin
    async def draft(self, *, target: str | dict[str, Any], parameters: dict[str, Any] = ..., node: str | None = ...) -> ScriptDraft: ...  # read

class AsyncJobsOperations:
    async def create(self, *, file: Path | None = ..., parameters: dict[str, Any] = ..., watch: bool = ..., yes: bool = ..., group: str = ...) -> RunResult: ...  # run
    async def list(self, *, state: JobState | None = ..., name: str | None = ..., tenant: str | None = ..., backend: BackendName | None = ..., stage: Stage | None = ..., group: str | None = ..., text: str | None = ..., limit: int = ..., cursor: str | None = ...) -> JobList: ...  # read
    async def show(self, *, job: str) -> JobDetail: ...  # read
    async def nodes(self, *, job: str) -> RunNodes: ...  # read
    async def node(self, *, job: str, node: str) -> NodeDetail: ...  # read
    async def logs(self, *, job: str, follow: bool = ..., tail: int | None = ..., source: str | None = ..., offset: int | None = ..., before: int | None = ..., limit_bytes: int = ...) -> JobLog: ...  # read
    async def metrics(self, *, job: str, node: str | None = ..., max_points: int | None = ..., since_step: int | None = ..., until_step: int | None = ..., plot: bool = ...) -> JobMetrics: ...  # read
    async def note(self, *, job: str, text: str = ...) -> Job: ...  # run
    async def pause(self, *, job: str, wait: bool = ...) -> Job: ...  # run
    async def resume(self, *, job: str, parameters: dict[str, Any] = ..., watch: bool = ...) -> Job | RunResult: ...  # run
    async def cancel(self, *, job: str, wait: bool = ...) -> Job: ...  # run
    async def retry(self, *, job: str, refresh: bool = ..., watch: bool = ...) -> RunResult: ...  # run
    async def checkpoints(self, *, job: str, node: str | None = ...) -> CheckpointList: ...  # read
    async def verify(self, *, job: str, node: str | None = ..., checkpoint: str | None = ...) -> VerifiedCheckpoints: ...  # read
    async def samples(self, *, job: str, node: str | None = ..., step: int | None = ..., limit: int = ...) -> JobSamples: ...  # read
    async def provenance(self, *, job: str) -> Provenance: ...  # read

class AsyncSessionsOperations:
    async def create(self, *, file: Path | None = ..., parameters: dict[str, Any] = ..., wait: bool = ...) -> SessionInfo: ...  # run
    async def list(self, *, limit: int = ...) -> SessionList: ...  # read
    async def show(self, *, session: str) -> SessionInfo: ...  # read
    async def heartbeat(self, *, session: str) -> SessionInfo: ...  # run
    async def close(self, *, session: str) -> SessionInfo: ...  # run
    async def resume(self, *, session: str, wait: bool = ...) -> SessionInfo: ...  # run
    async def forward(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., rows: tuple[str | dict[str, Any], ...] = ..., batch: dict[str, Any] = ..., tensors: bytes | None = ..., normalizer: float | None = ..., outputs: tuple[Literal['logits', 'hidden_states'], ...] = ...) -> ForwardReply: ...  # run
    async def backward(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., forward_id: str, scale: float = ..., measure: bool = ...) -> BackwardReply: ...  # run
    async def step(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., max_grad_norm: float | None = ..., learning_rate: float | None = ..., metric: float | None = ...) -> StepReply: ...  # run
    async def zero_grad(self, *, session: str, op_seq: int | None = ..., wait: bool = ...) -> Operated: ...  # run
    async def generate(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., prompts: tuple[str | list_[int] | dict[str, Any], ...], samples: int = ..., max_new_tokens: int = ..., temperature: float = ..., top_p: float = ..., seed: int = ..., stop_ids: tuple[int, ...] = ...) -> GenerateReply: ...  # run
    async def logprobs(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., rows: tuple[str | list_[int] | dict[str, Any], ...]) -> LogprobsReply: ...  # run
    async def save(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., name: str, kind: Literal['full', 'weights', 'result'] = ...) -> SaveReply: ...  # run
    async def load(self, *, session: str, op_seq: int | None = ..., wait: bool = ..., name: str, optimizer: bool = ...) -> LoadReply: ...  # run
    async def result(self, *, session: str, op_seq: int, wait: bool = ...) -> ResultReply: ...  # read
    async def output(self, *, session: str, name: str) -> Blob: ...  # read

class AsyncDataOperations:
    async def list(self, *, folder: str = ..., limit: int = ...) -> DataList: ...  # read
    async def upload(self, *, file: Path | None = ..., name: str = ..., folder: str = ...) -> UploadedFile: ...  # run
    async def delete(self, *, name: str) -> DeletedUpload: ...  # run
    async def columns(self, *, path: str) -> DataColumns: ...  # read
    async def preview(self, *, path: str, format: DataFormat | None = ..., columns: dict[str, Any] = ..., base_model: str | None = ..., template: str = ..., max_length: int = ..., generate: bool = ..., count: int = ..., wordings: int = ..., rows: int = ..., limit: int = ...) -> DataPreview: ...  # read

class AsyncArtifactsOperations:
    async def list(self, *, run: str | None = ..., port: Port | None = ..., sha256: str | None = ..., tenant: str | None = ..., limit: int = ..., cursor: str | None = ...) -> ArtifactList: ...  # read
    async def show(self, *, run: str, node: str, port: Port) -> ArtifactDetail: ...  # read
    async def rows(self, *, run: str, node: str, port: Port, part: str = ..., offset: int = ..., limit: int = ..., reason: str | None = ..., text: str | None = ..., text_chars: int = ...) -> ArtifactRows: ...  # read

class AsyncEvaluationsOperations:
    async def list(self, *, run: str | None = ..., tenant: str | None = ..., limit: int = ..., cursor: str | None = ...) -> EvaluationList: ...  # read
    async def show(self, *, run: str, node: str = ...) -> Evaluation: ...  # read

class AsyncGraphOperations:
    async def query(self, *, cypher: str, parameters: dict[str, Any] = ..., graph: str = ...) -> QueryRows: ...  # read
    async def stats(self, *, tenant: str | None = ..., graph: str = ...) -> GraphCounts: ...  # read
    async def entities(self, *, text: str = ..., kind: str = ..., tenant: str | None = ..., limit: int = ..., offset: int = ..., graph: str = ...) -> EntityList: ...  # read
    async def neighbors(self, *, key: str, tenant: str | None = ..., limit: int = ..., graph: str = ...) -> Neighbors: ...  # read
    async def export(self, *, tenant: str | None = ..., graph: str = ..., file: Path) -> Exported: ...  # run

class AsyncNightlyOperations:
    async def run(self, *, config: Path | None = ..., preset: str | None = ..., run: str | None = ..., again: bool = ...) -> NightReport: ...  # run
    async def simulate(self, *, nights: int = ..., seed: int = ..., inject: str | None = ..., processes: int | None = ..., campaign: int | None = ...) -> Simulated: ...  # run
    async def worker(self, *, config: Path | None = ..., preset: str | None = ..., once: bool = ...) -> Worked: ...  # admin
    async def status(self, *, config: Path | None = ..., preset: str | None = ...) -> NightStatus: ...  # read
    async def list(self, *, tenant: str | None = ..., limit: int = ...) -> NightList: ...  # read
    async def show(self, *, night: str, tenant: str | None = ...) -> NightDetail: ...  # read

class AsyncCorpusOperations:
    async def engineering(self, *, repo: Path, bucket: str | None = ..., briefs: Path | None = ..., config: Path | None = ...) -> Added: ...  # run
    async def apprenticeship(self, *, action: Literal['add'] = ..., file: Path | None = ..., prompt: str | None = ..., shadow: str | None = ..., verdict: str | None = ..., bucket: str | None = ..., config: Path | None = ...) -> Added: ...  # run
    async def status(self, *, config: Path | None = ..., preset: str | None = ...) -> CorpusStatus: ...  # read

class AsyncRenderersOperations:
    async def verify(self, *, names: tuple[str, ...] = ...) -> RendererTable: ...  # read

class AsyncStarterOperations:
    async def build(self) -> Record: ...  # admin

class AsyncTokensOperations:
    async def create(self, *, name: str, scope: Literal['read', 'run', 'admin'] = ..., tenant: str | None = ..., days: int = ...) -> NewToken: ...  # admin
    async def list(self) -> TokenList: ...  # admin
    async def revoke(self, *, name: str) -> Token: ...  # admin

class AsyncAuditOperations:
    async def list(self, *, caller: str | None = ..., operation: str | None = ..., tenant: str | None = ..., outcome: str | None = ..., hours: float | None = ..., limit: int = ...) -> AuditRows: ...  # admin
    async def verify(self) -> AuditCheck: ...  # admin

class AsyncOperations:
    async def up(self, *, port: int | None = ..., no_auth: bool = ..., expose: bool = ..., host: str | None = ..., tls_cert: Path | None = ..., tls_key: Path | None = ..., behind_proxy: str | None = ..., allow_host: tuple[str, ...] = ...) -> UpOutput: ...  # admin
    async def down(self) -> DownOutput: ...  # admin
    async def demo(self) -> DemoResult: ...  # admin
    async def dashboard(self) -> DashboardLink: ...  # admin
    async def env(self) -> EnvOutput: ...  # admin
    async def settings(self) -> MachineSettingList: ...  # admin
    async def doctor(self) -> Diagnosis: ...  # read
    async def migrate(self, *, dry_run: bool = ...) -> Migration: ...  # run
    async def gc(self, *, days: int = ..., dry_run: bool = ...) -> Collected: ...  # admin
    async def backup(self, *, file: Path, with_models: bool = ...) -> BackedUp: ...  # admin
    async def restore(self, *, file: Path) -> Restored: ...  # admin
    async def check(self, *, files: tuple[Path | dict[str, Any], ...]) -> CheckOutput: ...  # read
    async def plan(self, *, target: str | dict[str, Any], parameters: dict[str, Any] = ..., preset: str | None = ..., measure: bool = ...) -> ChainPlan: ...  # read
    async def run(self, *, target: str | dict[str, Any], parameters: dict[str, Any] = ..., preset: str | None = ..., watch: bool = ..., refresh: bool = ..., refresh_from: str | None = ..., yes: bool = ..., tags: tuple[str, ...] = ..., group: str = ...) -> RunResult: ...  # run
    @property
    def sweep(self) -> AsyncSweepOperations: ...
    async def compare(self, *, job: tuple[str, ...], plot: bool = ...) -> Comparison: ...  # read
    async def templates(self, *, name: str | None = ...) -> TemplateRows: ...  # read
    @property
    def chains(self) -> AsyncChainsOperations: ...
    async def schema(self, *, name: str | None = ...) -> ShownSchema: ...  # read
    async def prove_resume(self, *, everything: bool = ..., stages: tuple[Stage, ...] = ..., methods: tuple[Method, ...] = ..., jobs: int = ...) -> Proof: ...  # run
    async def serve(self, *, job: str | None = ..., role: Literal['training', 'graph', 'model'] | None = ..., host: str = ..., port: int | None = ..., tls_cert: Path | None = ..., tls_key: Path | None = ..., behind_proxy: str | None = ..., allow_host: tuple[str, ...] = ..., no_auth: bool = ..., graph: str = ..., model: tuple[str, ...] = ..., adapters: tuple[str, ...] = ..., dtype: Literal['float32', 'bfloat16'] | None = ..., threads: int | None = ...) -> Served: ...  # admin
    async def mcp(self, *, scope: Literal['read', 'run', 'admin'] = ...) -> McpEnded: ...  # admin
    async def chat(self, *, adapter: str, questions: tuple[str, ...] = ..., system: str = ..., max_tokens: int = ..., temperature: float = ..., seed: int = ...) -> ChatOutput: ...  # run
    async def eject(self, *, target: str, node: str | None = ..., into: Path | None = ...) -> EjectOutput: ...  # run
    async def import_(self, *, source: Path, tool: Literal['axolotl', 'llamafactory', 'trl', 'unsloth', 'oumi', 'torchtune'] | None = ..., settings: dict[str, Any] = ..., without: tuple[str, ...] = ..., out: Path | None = ..., report: bool = ...) -> ImportOutput: ...  # run
    async def export(self, *, target: str, to: Literal['axolotl', 'llamafactory'], node: str | None = ..., out: Path | None = ...) -> ExportOutput: ...  # run
    @property
    def adapters(self) -> AsyncAdaptersOperations: ...
    @property
    def backends(self) -> AsyncBackendsOperations: ...
    @property
    def scripts(self) -> AsyncScriptsOperations: ...
    @property
    def jobs(self) -> AsyncJobsOperations: ...
    @property
    def sessions(self) -> AsyncSessionsOperations: ...
    async def gpus(self) -> GpuList: ...  # read
    async def models(self) -> ModelList: ...  # read
    @property
    def data(self) -> AsyncDataOperations: ...
    @property
    def artifacts(self) -> AsyncArtifactsOperations: ...
    @property
    def evaluations(self) -> AsyncEvaluationsOperations: ...
    @property
    def graph(self) -> AsyncGraphOperations: ...
    @property
    def nightly(self) -> AsyncNightlyOperations: ...
    @property
    def corpus(self) -> AsyncCorpusOperations: ...
    @property
    def renderers(self) -> AsyncRenderersOperations: ...
    @property
    def starter(self) -> AsyncStarterOperations: ...
    @property
    def tokens(self) -> AsyncTokensOperations: ...
    @property
    def audit(self) -> AsyncAuditOperations: ...

class AsyncSurface(AsyncOperations):
    def __init__(self, call: Call, client: AsyncClient | None = None) -> None: ...
    async def close(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None: ...

async def call_in_thread(name: str, fields: dict[str, Any]) -> Any: ...
async def call_over_http(client: AsyncClient, name: str, fields: dict[str, Any]) -> Any: ...
def connect_async(
    url: str = ..., token: str = ..., *, ca_file: str | None = ..., timeout_s: float = ...
) -> AsyncSurface: ...

aio: AsyncSurface
