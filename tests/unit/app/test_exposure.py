from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest

from tests.certificates import make_certificate
from trainyard.app.context import Context
from trainyard.app.exposure import (
    Exposure,
    exposure_file,
    keep_exposure,
    list_host_names,
    read_certificate,
    read_exposure,
    require_safe,
    resolve_addresses,
    warn_of_expiry,
)
from trainyard.app.services import choose_exposure
from trainyard.app.stack.stack import list_exposed_urls, resolve_exposure
from trainyard.errors import InvalidInput
from trainyard.operations.serving import ServeInput
from trainyard.operations.stack import UpInput
from trainyard.settings import settings
from trainyard.surfaces.serve import serve


@pytest.mark.parametrize(
    ("exposure", "everybody", "expected"),
    [
        (Exposure("0.0.0.0"), False, r"E-PARAMETER: The server does not listen on 0\.0\.0\.0 without TLS"),
        (Exposure("::"), False, "E-PARAMETER: The server does not listen on :: without TLS"),
        (Exposure("192.0.2.7"), False, "without TLS"),
        (Exposure("lab.example.org"), False, "without TLS"),
        (Exposure("0.0.0.0", behind_proxy="192.0.2.9"), True, "E-AUTH: .* does not listen on .* with --no-auth"),
        (Exposure(tls_cert="a.pem"), False, "--tls-cert and --tls-key belong together"),
        (Exposure(tls_key="a.pem"), False, "--tls-cert and --tls-key belong together"),
        (Exposure("0.0.0.0", behind_proxy="proxy.example.org"), False, "'proxy.example.org' is not an address"),
        (Exposure("0.0.0.0", behind_proxy="192.0.2.0/24"), False, "is not an address"),
        (Exposure(tls_cert="/none/a.pem", tls_key="/none/b.pem"), False, "/none/a.pem cannot be read: No such file"),
    ],
)  # fmt: skip
def test_what_would_let_others_in_is_refused(exposure: Exposure, everybody: bool, expected: str) -> None:
    with pytest.raises(InvalidInput, match=expected):
        require_safe(exposure, everybody=everybody)


def test_loopback_and_a_proxy_need_no_certificate() -> None:
    for exposure in (Exposure(), Exposure("localhost"), Exposure("::1"), Exposure("0.0.0.0", behind_proxy="::1")):
        assert require_safe(exposure, everybody=False) is None
    assert require_safe(Exposure(), everybody=True) is None


def test_a_certificate_names_its_hosts_and_its_end(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "lab.example.org", "*.example.org", "192.0.2.7", "fd00::7", days=9)
    read_back = read_certificate(certificate, key)
    assert read_back.names == ("lab.example.org", "192.0.2.7", "[fd00::7]")
    messages: list[str] = []
    warn_of_expiry(read_back, messages.append)
    assert re.search("expires in [89] days", messages[0])
    warn_of_expiry(read_certificate(*make_certificate(tmp_path, days=-1)), messages.append)
    assert "has expired" in messages[1]
    warn_of_expiry(read_certificate(*make_certificate(tmp_path)), messages.append)
    assert len(messages) == 2


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "a")
    other = make_certificate(tmp_path, "a", word="other")[1]
    locked = make_certificate(tmp_path, "a", word="locked", password=b"secret")
    (tmp_path / "text.pem").write_text("hello")
    with pytest.raises(InvalidInput, match=r"other-key\.pem is not the key of .*tls-cert\.pem"):
        read_certificate(certificate, other)
    for certificate_file, key_file in (
        (tmp_path / "text.pem", key),
        (certificate, tmp_path / "text.pem"),
        (key, certificate),
        locked,
    ):
        with pytest.raises(InvalidInput, match="is not a valid certificate with its key"):
            read_certificate(certificate_file, key_file)
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        read_certificate(tmp_path, key)


def test_every_address_means_those_of_this_machine_besides_loopback() -> None:
    addresses = {row.address for rows in psutil.net_if_addrs().values() for row in rows}
    assert set(resolve_addresses("::") if len(addresses) > 3 else ()) <= addresses
    assert resolve_addresses("127.0.0.1") == ()
    with pytest.raises(InvalidInput, match=r"'nowhere\.invalid' is not an address of this machine"):
        resolve_addresses("nowhere.invalid")


def test_names_are_those_of_certificate_address_and_option(tmp_path: Path) -> None:
    certificate = read_certificate(*make_certificate(tmp_path, "lab.example.org"))
    exposure = Exposure("192.0.2.7", names=("proxy.example.org",))
    assert list_host_names(exposure, certificate) == ("192.0.2.7", "192.0.2.7", "lab.example.org", "proxy.example.org")
    assert list_host_names(Exposure(names=("a",)), None) == ("a",)


def test_what_up_chose_is_kept_for_a_restart(home: Path) -> None:
    up_input = UpInput(expose=True, host="192.0.2.7", behind_proxy="192.0.2.9", allow_host=("lab.example.org",))
    exposure = resolve_exposure(up_input)
    settings().services.mkdir(parents=True)
    choose_exposure(settings(), exposure)
    assert read_exposure(settings()) == exposure
    assert exposure is not None
    assert exposure.arguments() == [
        "--host", "192.0.2.7", "--behind-proxy", "192.0.2.9", "--allow-host", "lab.example.org",
    ]  # fmt: skip
    assert list_exposed_urls(settings(), "http://127.0.0.1:8898") == ("http://192.0.2.7:8898",)
    choose_exposure(settings(), None)
    assert not exposure_file(settings()).exists()
    keep_exposure(settings(), None)
    assert list_exposed_urls(settings(), "http://127.0.0.1:8898") == ()


@pytest.mark.parametrize("field", [{"host": "192.0.2.7"}, {"tls_cert": "a"}, {"allow_host": ("a",)}])
def test_options_without_expose_are_refused(field: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"--[a-z-]+ belongs to --expose"):
        resolve_exposure(UpInput.model_validate(field))


@pytest.mark.parametrize("role", ["graph", "model"])
def test_options_of_the_api_are_refused_by_other_roles(role: str) -> None:
    serve_input = ServeInput.model_validate({"role": role, "behind_proxy": "192.0.2.9"})
    with pytest.raises(InvalidInput, match="--behind-proxy belongs to the role training"):
        serve(serve_input, Context(settings()))
