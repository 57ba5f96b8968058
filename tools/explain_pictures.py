"""Take the pictures of docs/explain.md: the page of a real `feedline explain`, at two widths, in headless Chromium.

    python tools/explain_pictures.py [--out docs/images]

It generates a table of clicks, explains a run of it at a trainer's pace, and shows the page that was written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from page_screenshots import PIPELINE, ROOT, browser, save


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--rows", type=int, default=400_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="feedline-explain-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "feedline"]
        subprocess.run([*command, "generate", "clicks", folder / "clicks", "--rows", str(arguments.rows)], check=True)
        path, page_file = folder / "pipeline.yaml", folder / "explain.html"
        path.write_text(json.dumps(PIPELINE))
        explain = [*command, "explain", path, "--seconds", "8", "--step-s", "0.002", "--html", page_file]
        subprocess.run(explain, check=True)
        with browser(folder) as page:
            arguments.out.mkdir(parents=True, exist_ok=True)
            for width, suffix in ((1100, ""), (420, "-narrow")):
                page.resize(width, 900)
                page.open(page_file.as_uri())
                page.wait_for_text("What a feature costs")
                save(page, arguments.out / f"explain{suffix}.png")
            print(page.console, page.failed)


if __name__ == "__main__":
    main()
