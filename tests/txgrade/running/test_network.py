"""How a scheduler is reached: whoever reaches it runs code as whoever grades, so not unencrypted across a network."""

import shutil
import socket
import subprocess
import sys

import pytest

pytest.importorskip("distributed")
from txgrade.running.cluster import Network, cluster


@pytest.mark.parametrize(
    "address", ["tcp://10.0.0.5:8786", "10.0.0.5:8786", "tcp://[2001:db8::1]:8786", "ws://8.8.8.8:1"]
)
def test_another_machine_is_not_reached_unencrypted(address):
    with pytest.raises(ValueError, match="runs code as you, and .* listens .* tls://HOST:PORT .* --trust-network"):
        cluster(address, Network())


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "127.0.0.1:9", "tcp://localhost:9", "tcp://[::1]:9"])
def test_this_machine_is(address):
    assert not Network().security(address).require_encryption


def test_a_network_may_be_trusted():
    Network(trust=True).security("tcp://10.0.0.5:8786")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Of an authority that vouches for itself."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=test"]
        + ["-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


def test_tls_needs_its_files(certificate, tmp_path):
    cert, key = certificate
    with pytest.raises(ValueError, match="needs --tls-ca-file, --tls-cert, --tls-key"):
        cluster("tls://10.0.0.5:8786", Network())
    with pytest.raises(ValueError, match="no file .*missing.pem"):
        cluster("tls://10.0.0.5:8786", Network(tmp_path / "missing.pem", cert, key))
    with pytest.raises(ValueError, match="is unencrypted, and the TLS options need tls://"):
        cluster("tcp://127.0.0.1:8786", Network(cert, cert, key))


def test_a_scheduler_behind_tls(certificate, tmp_path):
    """It answers whoever has a certificate of its authority, and nobody else."""
    cert, key = map(str, certificate)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", f"tls://127.0.0.1:{port}", "--no-dashboard"]
    options += ["--tls-ca-file", cert, "--tls-cert", cert, "--tls-key", key]
    process = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", *options],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with cluster(f"tls://127.0.0.1:{port}", Network(*certificate[:1], *certificate)) as client:
            assert client.scheduler_info()["address"].startswith("tls://")
        with pytest.raises(ValueError, match="no scheduler answers"):
            cluster(f"tcp://127.0.0.1:{port}", Network())  # without TLS
    finally:
        process.kill()
        process.wait()
