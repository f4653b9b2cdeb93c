from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import psutil
import pytest
import yaml

from trainyard.app import services as stack
from trainyard.app.context import Context
from trainyard.app.stack.stack import env, serve_models
from trainyard.callbacks import ignore
from trainyard.compute.services import Service, free_port, record_path, write_record
from trainyard.errors import InvalidInput, TrainyardError, Unavailable
from trainyard.locations import checkout
from trainyard.operations.base import Nothing
from trainyard.serve import embedded
from trainyard.settings import Settings, load_settings, settings
from trainyard.testing.loopback import LoopbackServer, serving


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    """A server that answers the health question of Prefect's API."""
    with serving(LoopbackServer(Health)) as running:
        yield f"{running.url}/api"


@pytest.fixture(autouse=True)
def no_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)


def make_record(here: Settings, name: str, url: str, log: Path | None = None) -> Service:
    """A service record of a live process: this one."""
    me = psutil.Process()
    here.services.mkdir(parents=True, exist_ok=True)
    service = {"name": name, "pid": me.pid, "create_time": me.create_time(), "url": url, "log": str(log or "")}
    record_path(here, name).write_text(json.dumps(service))
    return Service(**service)  # type: ignore[arg-type]


def test_the_environment_has_a_home_of_its_own(home: Path) -> None:
    environment = stack.prefect_environment(settings(), "http://127.0.0.1:4200/api")
    assert environment["PREFECT_HOME"] == str(home / "prefect")
    assert environment["PREFECT_RESULTS_PERSIST_BY_DEFAULT"] == "true"
    assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"


def test_a_caller_s_server_settings_do_not_reach_our_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_SERVER_API_PORT", "1")
    assert "PREFECT_SERVER_API_PORT" not in stack.service_environment(settings(), "http://127.0.0.1:4200/api")


def test_services_that_run_keep_the_folder_where_relative_paths_start(home: Path, tmp_path: Path) -> None:
    url, messages = "http://127.0.0.1:4200/api", list[str]()
    first, second = (load_settings(working_folder=tmp_path / name) for name in ("first", "second"))

    def folder_of_worker(folder_settings: Settings) -> str:
        stack.choose_working_folder(folder_settings, messages.append)
        return stack.service_environment(folder_settings, url, "worker")["TRAINYARD_WORKING_FOLDER"]

    assert [folder_of_worker(folder_settings) for folder_settings in (second, first)] == [
        str(tmp_path / "second"),
        str(tmp_path / "first"),
    ]
    make_record(first, "api", url)
    assert folder_of_worker(first) == str(tmp_path / "first")
    assert not messages
    assert folder_of_worker(second) == str(tmp_path / "first")
    (note,) = messages
    assert f"start at {tmp_path / 'first'}, where the services were started" in note


def test_without_tls_one_certificate_is_enough(home: Path) -> None:
    (path,) = stack.certificate_variables(settings(), "http://127.0.0.1:4200/api").values()
    assert len(ssl.create_default_context(cafile=path).get_ca_certs()) == 1


def test_with_tls_the_bundle_stays() -> None:
    assert stack.certificate_variables(settings(), "https://prefect.example/api") == {}


def test_the_caller_s_prefect_server_is_attached_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://elsewhere:4200/api/")
    assert stack.api_url(settings()) == "http://elsewhere:4200/api"


def test_what_env_exported_is_no_foreign_server(monkeypatch: pytest.MonkeyPatch) -> None:
    make_record(settings(), "server", "http://127.0.0.1:4217/api")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4217/api")
    assert stack.external_api_url(settings()) is None
    assert stack.api_url(settings()) == "http://127.0.0.1:4217/api"


def test_an_export_of_an_earlier_port_is_no_foreign_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4999/api")
    monkeypatch.setenv("PREFECT_HOME", str(settings().prefect_home))
    assert stack.external_api_url(settings()) is None


def test_a_foreign_server_stays_one_in_what_is_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://elsewhere:4200/api"
    for name, value in stack.prefect_environment(settings(), url).items():
        monkeypatch.setenv(name, value)
    assert stack.external_api_url(settings()) == stack.api_url(settings()) == url
    make_record(settings(), "server", "http://127.0.0.1:4217/api")
    own = stack.prefect_environment(settings(), "http://127.0.0.1:4217/api")
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    assert stack.external_api_url(settings()) is None


def test_no_server_says_how_to_get_one() -> None:
    with pytest.raises(Unavailable, match=r"E-NO-SERVER: No Prefect server of the home .* is running\."):
        stack.require_api_url(settings())


def test_no_server_names_those_of_other_homes(tmp_path: Path) -> None:
    """A process that looks as `up` starts it, in an environment that names another home."""
    other = tmp_path / "other"
    write_record(other / "services" / "server.json", Service(1, 0.0, "http://127.0.0.1:4321/api"))
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", stack.GUARD_MODULE]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "TRAINYARD_HOME": str(other)})
    try:
        assert stack.servers_of_other_homes(settings())[other] == "http://127.0.0.1:4321/api"
        error = stack.no_server_error(settings())
        assert f"One of the home {other} answers at http://127.0.0.1:4321/api." in error.why
        assert f"export TRAINYARD_HOME={other}" in error.do
    finally:
        child.communicate()
    assert other not in stack.servers_of_other_homes(settings())


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    with pytest.raises(Unavailable, match=r"E-SERVER-UNREACHABLE: The Prefect server at http://127\.0\.0\.1:9/api"):
        stack.require_api_url(settings())


def test_a_server_that_answers_is_used(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server)
    assert stack.require_api_url(settings()) == server


def test_a_running_server_is_not_started_twice(server: str) -> None:
    messages: list[str] = []
    service = make_record(settings(), "server", server)
    assert stack.start_server(settings(), messages.append) == service
    assert messages == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("TypeError: Body() got an unexpected keyword argument 'min_items'", "FastAPI is too new for Prefect"),
        ("[Errno 98] error while attempting to bind on address: address already in use", "took the port meanwhile"),
        ("OSError: [Errno 28] No space left on device", "The disk is full"),
        ("sqlite3.OperationalError: database is locked", "uses the same database"),
        ("sqlite3.OperationalError: unable to open database file", "cannot be written"),
        ("alembic.util.exc.CommandError: Can't locate revision identified by 'abc'", "written by a newer Prefect"),
        ("ModuleNotFoundError: No module named 'prefect'", "A package is missing"),
        ("something that nobody has seen before", "something that nobody has seen before"),
    ],
)
def test_a_server_that_cannot_start_says_why(tmp_path: Path, line: str, why: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"starting\n{line}\n")
    error = stack.cannot_start(Service(1, 0.0, "http://x", "server", str(log)), "it ended at once")
    assert error.code == "E-SERVER-START"
    assert "The Prefect server cannot start: it ended at once." in str(error)
    assert why in error.why
    assert error.do


def test_a_server_that_dies_is_noticed_at_once(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("OSError: [Errno 28] No space left on device")
    with pytest.raises(TrainyardError, match=r"E-SERVER-START: .*Free space under TRAINYARD_HOME"):
        stack.wait_until_healthy(Service(2**22 - 1, 0.0, "http://127.0.0.1:9/api", "server", str(log)))


def test_the_checkout_holds_the_deployments() -> None:
    assert (checkout() / "flows" / "chain.py").is_file()


def test_a_worker_keeps_its_name_and_homes_have_different_ones(tmp_path: Path) -> None:
    first, second = Settings(home=tmp_path / "a"), Settings(home=tmp_path / "b")
    assert stack.worker_name(first) == stack.worker_name(first) != stack.worker_name(second)


def test_another_server_has_to_be_written_to_again(tmp_path: Path) -> None:
    here = Settings(home=tmp_path)
    here.services.mkdir(parents=True)
    stack.mark_bootstrapped(here, "http://127.0.0.1:1/api")
    assert stack.bootstrap_digest(here, "http://127.0.0.1:1/api") != stack.bootstrap_digest(
        here, "http://127.0.0.1:2/api"
    )
    assert not stack.is_bootstrapped(here, "http://127.0.0.1:2/api")


def test_a_server_that_lost_its_database_is_written_to_again(server: str, tmp_path: Path) -> None:
    here = Settings(home=tmp_path)
    here.services.mkdir(parents=True)
    stack.mark_bootstrapped(here, server)
    assert not stack.is_bootstrapped(here, server)


def test_a_pool_of_another_name_gets_the_same_deployments(tmp_path: Path) -> None:
    assert stack.write_other_pool(Settings(home=tmp_path), "http://127.0.0.1:4200/api") == []
    here = Settings(home=tmp_path, work_pool="gpu-box")
    here.services.mkdir(parents=True)
    _, path = stack.write_other_pool(here, "http://127.0.0.1:4200/api")
    written = yaml.safe_load(Path(path).read_text())
    assert {deployment["work_pool"]["name"] for deployment in written["deployments"]} == {"gpu-box"}
    assert len(written["deployments"]) == 11


def test_a_server_of_another_home_on_the_same_port_is_not_taken_for_ours(server: str) -> None:
    """Two homes may find the same port free, and the slower one must not use the other's server."""
    port = int(server.removesuffix("/api").rpartition(":")[2])
    service = make_record(settings(), "server", server)
    assert stack.owns_listener(service, port)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        other_service = Service(other.pid, psutil.Process(other.pid).create_time(), server)
        assert not stack.owns_listener(other_service, port)
        other.kill()
    assert not stack.owns_listener(other_service, port), "it has ended"


def test_a_server_that_died_is_started_again_on_its_port(server: str) -> None:
    """A lower port may have become free meanwhile, but the runs that are at work know only the one before."""
    assert stack.read_previous_port(settings()) is None
    make_record(settings(), "server", server)
    assert stack.read_previous_port(settings()) is None, "somebody listens there"
    free = free_port(0)
    make_record(settings(), "server", f"http://127.0.0.1:{free}/api")
    assert stack.read_previous_port(settings()) == free


def test_logs_are_json_by_a_setting() -> None:
    """Prefect reads the variable and knows the formatter: each line is an object that names level and run."""
    json_settings = load_settings(log_format="json")
    environment = stack.service_environment(json_settings, "http://127.0.0.1:4217/api", "worker")
    assert stack.CONSOLE_FORMATTER not in stack.service_environment(settings(), "http://127.0.0.1:4217/api", "worker")
    program = (
        "import logging; from prefect.logging.configuration import setup_logging; setup_logging(); "
        "logging.getLogger('prefect.workers').warning('hello\\nworld', extra={'flow_run_id': '0aa885f8'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    (line,) = done.stderr.splitlines()
    entry = json.loads(line)
    assert (entry["levelname"], entry["msg"], entry["flow_run_id"]) == ("WARNING", "hello\nworld", "0aa885f8")


def test_another_log_format_is_refused() -> None:
    with pytest.raises(InvalidInput, match="E-SETTINGS"):
        load_settings(log_format="xml")


@pytest.mark.slow
def test_a_model_server_does_not_outlive_a_start_that_failed(home: Path, tiny_model: Path) -> None:
    here = load_settings(home=home, serve_models=(str(tiny_model),))

    def fail() -> None:
        with serve_models(here, ignore) as served:
            assert served.result() == embedded.find_running(here) is not None
            raise Unavailable("There is no Prefect.")

    with pytest.raises(Unavailable, match="no Prefect"):
        fail()
    assert embedded.instance(here) is None


def test_the_variables_of_prefect_exempt_loopback_from_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context(load_settings(), say=lambda _: None)
    monkeypatch.setattr(stack, "resolve_api_url", lambda _: "http://127.0.0.1:4200/api")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "localhost,127.0.0.1,::1")
    assert env(Nothing(), context).variables["NO_PROXY"] == "localhost,127.0.0.1,::1"
