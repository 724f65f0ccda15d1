"""The file by which a probe knows that a worker is alive, and ready."""

import os
import time
from pathlib import Path

import pytest

from onejob.celery.worker.probe import ProbeFile, find_fault
from onejob.errors import ConfigurationError
from tests.cli.command import call


def test_a_worker_that_moves_is_alive_and_ready_after_its_first_contact(tmp_path: Path) -> None:
    """A file that was just touched is that of a worker that is alive; it is ready with an answer of the store."""
    path = tmp_path / "worker"
    file = ProbeFile(str(path))
    assert "no worker writes" in str(find_fault(path, time.time()))
    file.create()
    assert find_fault(path, time.time()) is None
    assert "not reached the store yet" in str(find_fault(path, time.time(), ready=True))
    file.write_contact(silent=True)
    assert "hears nothing from its broker" in str(find_fault(path, time.time(), ready=True))
    file.write_contact()
    assert find_fault(path, time.time(), ready=True) is None
    for content in (b"hello\n", b"\xff\xfe"):
        path.write_bytes(content)
        assert "it has other content" in str(find_fault(path, time.time(), ready=True))
    file.remove()
    assert find_fault(path, time.time()) is not None
    file.remove()


def test_a_worker_without_the_store_is_alive_and_not_ready(tmp_path: Path) -> None:
    """While the store is away a worker is alive, and no longer ready after the maximum age."""
    path = tmp_path / "worker"
    file = ProbeFile(str(path))
    file.create()
    file.write_contact()
    later = time.time() + 61
    assert "has not moved for 6" in str(find_fault(path, later))
    os.utime(path, (later, later))
    assert find_fault(path, later) is None
    assert "not reached the store for 6" in str(find_fault(path, later, ready=True))
    assert find_fault(path, later, ready=True, max_age=100.0) is None


def test_the_command_fails_with_the_reason(tmp_path: Path) -> None:
    """`onejob probe FILE` has the exit code 0 for a live worker, and otherwise 1 and the reason."""
    path = tmp_path / "worker"
    missing = call("probe", str(path))
    assert missing.exit_code == 1
    assert "no worker writes" in missing.output
    ProbeFile(str(path)).create()
    assert [call("probe", str(path), *options).exit_code for options in ((), ("--ready",))] == [0, 1]


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    """A probe file in a missing folder is a configuration error; no path is no file."""
    with pytest.raises(ConfigurationError, match=r"onejob_probe_file=.*writable folder"):
        ProbeFile(str(tmp_path / "missing" / "worker")).create()
    for write in (ProbeFile("").create, ProbeFile("").touch, ProbeFile("").write_contact, ProbeFile("").remove):
        write()
