"""Build or serve the site.

    python -m website build    # into build/website/site; a broken link or a page outside the navigation fails
python -m website serve    # on localhost:8000, built again when a page changes
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from website.check import faults, omissions
from website.navigation import FROM_ROOT, ROOT
from website.stage import HOST, stage

BUILD = ROOT / "build" / "website"
GENERATOR = [str(Path(sys.executable).with_name("zensical"))]
WATCH_INTERVAL = 1.0


def build(folder: Path) -> list[str]:
    """Build the site into `site` in a folder and return its faults."""
    stage(folder)
    command = [*GENERATOR, "build", "--clean", "--strict", "--config-file", str(folder / "zensical.toml")]
    done = subprocess.run(command, cwd=folder, check=False)
    if done.returncode:
        return [f"zensical ended with {done.returncode}"]
    for source, page in FROM_ROOT.items():  # their source is not the file of docs/ that the generator names
        built = folder / "site" / Path(page).with_suffix(".html")
        text = built.read_text(encoding="utf-8")
        built.write_text(text.replace(f"{HOST}/edit/main/docs/{page}", f"{HOST}/edit/main/{source}"), encoding="utf-8")
    return faults(folder / "site") + omissions(folder / "site")


def serve(folder: Path) -> None:
    """Serve the site until Ctrl-C, and stage the pages again when they have changed."""
    stage(folder)
    server = subprocess.Popen([*GENERATOR, "serve", "--config-file", str(folder / "zensical.toml")], cwd=folder)
    try:
        while server.poll() is None:
            try:
                server.wait(WATCH_INTERVAL)
            except subprocess.TimeoutExpired:
                stage(folder)
    except KeyboardInterrupt:
        pass
    finally:
        server.terminate()
        server.wait()


def main(arguments: list[str]) -> int:
    """Run the command that is given and return the exit code."""
    match arguments:
        case ["build"]:
            found = build(BUILD)
            print(*found, sep="\n") if found else print(f"built: {BUILD}/site/index.html")
            return 1 if found else 0
        case ["generate"]:
            from website import generated

            generated.write()
            return 0
        case ["serve"]:
            serve(BUILD)
            return 0
        case _:
            print(__doc__)
            return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
