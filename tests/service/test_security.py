"""A process has one certificate, in whichever role it speaks to Dask."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from processes import role_files

from feedline.config.cluster_section import TlsSpec
from feedline.errors import ClusterError
from feedline.service.certificate_authority import make_certificates
from feedline.service.certificates import security_of


def test_a_process_without_certificates_is_unencrypted():
    arguments = security_of(None, listens=True).get_connection_args("client")
    assert (arguments["ssl_context"], arguments["require_encryption"]) == (None, False)


def test_files_of_a_role_serve_every_role_and_are_checked(tmp_path: Path):
    make_certificates(tmp_path, hosts=[], days=10, renew=False, now=datetime.datetime.now(tz=datetime.UTC))
    files = role_files(tmp_path, "worker")
    security = security_of(TlsSpec(**files), listens=True)
    for role in ("client", "worker", "scheduler"):
        arguments = security.get_connection_args(role)
        assert arguments["require_encryption"]
        assert arguments["ssl_context"] is not None
        assert security.get_tls_config_for_role(role)["cert"] == files["cert"]
    with pytest.raises(ClusterError, match="nothing-there"):
        security_of(TlsSpec(**{**files, "key": str(tmp_path / "nothing-there")}), listens=True)
