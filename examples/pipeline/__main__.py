"""Make study cards of the documents of two customers, with a provider that refuses what is above its rate.

python -m examples.pipeline --documents 12
python -m examples.pipeline --without-limits
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import onejob
from examples.pipeline.provider import Provider
from examples.processes import Processes
from tests.services import eventually

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
PLACES = 40
"""The places of all workers: so many jobs run at once."""


def main() -> int:
    """Start everything, make all cards, take everything down. Returns the exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # who reads through a pipe reads along
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="onejob-pipeline-"))
    provider = Provider(options.seconds)
    threading.Thread(target=provider.serve_forever, args=(0.05,), daemon=True).start()
    try:
        with closing(Processes(folder)) as processes:
            right = _play(options, processes, folder, provider)
    except KeyboardInterrupt:
        return 130
    finally:
        if options.keep:
            shutil.copytree(folder, options.keep)
        provider.shutdown()
        provider.server_close()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0 if right else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.pipeline", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=12, help="how many documents the publisher has")
    parser.add_argument("--chunks", type=int, default=3, help="how many chunks a document has")
    parser.add_argument("--seconds", type=float, default=0.15, help="how long an answer of the provider takes")
    parser.add_argument("--workers", type=int, default=2, help="how many workers there are")
    parser.add_argument("--without-limits", action="store_true", help="no limits: see the provider refuse requests")
    parser.add_argument("--keep", type=Path, help="a new folder for the ledger and the cards; else they are removed")
    return parser.parse_args()


def _play(options: argparse.Namespace, processes: Processes, folder: Path, provider: Provider) -> bool:
    """Start the workers, and make all cards. Returns whether everything is as promised."""
    os.environ |= {"PIPELINE_FOLDER": str(folder), "PIPELINE_PROVIDER": provider.url}
    os.environ |= {"PIPELINE_LIMITS": "none"} if options.without_limits else {}
    from examples.pipeline.story import Story  # it reads the environment

    with onejob.Client(f"sqlite:///{folder}/ledger.db") as client:
        client.migrate()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    story = Story(options.documents, options.chunks, provider.meter, limited=not options.without_limits)
    names = [f"worker{number}" for number in range(1, options.workers + 1)]
    print(f"the provider and {len(names)} workers are starting; together they run {PLACES} jobs at once ...")
    for name in names:
        command = f"-m celery -A examples.pipeline.studio worker -n {name}@studio -P onejob -l INFO"
        command += f" -c {PLACES // len(names)} --without-gossip --without-mingle"
        processes.start(name, [sys.executable, *command.split()], environment)
    try:
        for name in names:
            eventually(partial(_is_ready, folder / f"{name}.log"), START_SECONDS)
        return story.play()
    except AssertionError:
        print(*(log.read_text()[-2000:] for log in folder.glob("*.log")), sep="\n", file=sys.stderr)
        raise


def _is_ready(log: Path) -> bool:
    return b" ready." in log.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
