"""Make a release from a clean checkout of main: checks, version, changelog, commit, distributions, SBOM, tag.

    make release VERSION=0.2.0

Nothing is pushed or published: the last line says how to. A step that fails leaves no tag, and the files as they were.
`--check COMMAND` (repeatable) replaces what a release must pass, `.ci/run` and `tools/test_wheel.sh` with the lowest
versions and without kernels.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path.cwd()
VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
IMAGES = "deploy/kubernetes/kustomization.yaml"
CHECKS = (
    ".ci/run",
    "make test-wheel",
    "make test-wheel VARIANT=lowest",
    "make test-wheel VARIANT=bare",
)


class ReleaseError(Exception):
    """A release that cannot be made; nothing is left of it."""


def run(*command: str) -> str:
    """What a command prints; raises ReleaseError for one that fails."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{shlex.join(command)} failed with exit status {done.returncode}\n{done.stdout}".rstrip())
    return done.stdout.strip()


def order(version: str) -> tuple[list[int], str, int]:
    """Versions in the order of releases: 0.2.0a1, 0.2.0b1, 0.2.0rc1, 0.2.0, 0.2.1."""
    numbers, phase, number = re.fullmatch(r"([\d.]+?)(?:(a|b|rc)(\d+))?", version).groups()
    return [int(each) for each in numbers.split(".")], phase or "z", int(number or 0)


def refuse(version: str) -> None:
    """Raise ReleaseError for a release that must not be made from here."""
    if not VERSION.fullmatch(version):
        raise ReleaseError(f"VERSION is no version: got {version!r}, expected one such as 0.2.0, or 0.2.0rc1")
    if changed := run("git", "status", "--porcelain"):
        raise ReleaseError(f"the checkout has changes that are not committed. Commit or stash them first:\n{changed}")
    if (branch := run("git", "rev-parse", "--abbrev-ref", "HEAD")) != "main":
        raise ReleaseError(f"a release is made from main: got {branch}")
    tags = [tag.removeprefix("v") for tag in run("git", "tag", "--list", "v*").split()]
    released = [tag for tag in tags if VERSION.fullmatch(tag)]
    if newer := [tag for tag in released if order(tag) >= order(version)]:
        raise ReleaseError(f"{version} is not newer than what was released: {', '.join(newer)}")
    if not unreleased((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")).strip():
        raise ReleaseError("CHANGELOG.md has nothing below [Unreleased]: say there what the release changes")


def unreleased(changelog: str) -> str:
    """The section of what is not released yet."""
    found = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ReleaseError("CHANGELOG.md has no heading ## [Unreleased]")
    return found[1]


def with_version(text: str, pattern: str, version: str, path: str) -> str:
    """A file with the version in the group of a pattern, wherever it matches."""
    changed, times = re.subn(pattern, lambda found: found[0].replace(found[1], version), text, flags=re.MULTILINE)
    if not times:
        raise ReleaseError(f"{path} names no version")
    return changed


def write_version(version: str, today: datetime.date) -> None:
    """Put the version into pyproject.toml, the changelog and the images' tags."""
    changes = {
        "pyproject.toml": r'^version = "(.*)"$',
        IMAGES: r'^\s+newTag: "(.*)"$',
    }
    for path, pattern in changes.items():
        file = ROOT / path
        file.write_text(with_version(file.read_text(encoding="utf-8"), pattern, version, path), encoding="utf-8")
    changelog = ROOT / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    heading = f"## [Unreleased]\n\n## [{version}] - {today.isoformat()}\n"
    changelog.write_text(text.replace("## [Unreleased]\n", heading, 1), encoding="utf-8")


def write_bill(wheel: Path, version: str) -> Path:
    """The bill of materials (CycloneDX) of the wheel, installed into an environment of its own."""
    environment = ROOT / "build" / "release"
    venv.create(environment, clear=True, with_pip=False)
    python = str(environment / "bin" / "python")
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--constraint", "constraints.txt", str(wheel))
    run(*pip, "check")
    bill = wheel.parent / f"feedline-{version}.cdx.json"
    tool = "build/release-tools/bin/cyclonedx-py"
    run(
        tool,
        "environment",
        python,
        "--pyproject",
        "pyproject.toml",
        "--output-reproducible",
        "--output-file",
        str(bill),
    )
    return bill


def release(version: str, checks: list[str]) -> None:
    """Make the release; raises ReleaseError, with the checkout as it was."""
    refuse(version)
    before = run("git", "rev-parse", "HEAD")
    try:  # what is checked and built is the commit that is tagged
        write_version(version, datetime.datetime.now(tz=datetime.UTC).date())
        run("git", "commit", "--all", "--message", f"Release {version}")
        for check in checks:
            print(f"{check} ...", flush=True)
            run("bash", "-c", check)
        run("make", "wheel")
        [wheel] = (ROOT / "dist").glob("*.whl")
        write_bill(wheel, version)
        run("git", "tag", "--annotate", f"v{version}", "--message", f"Feedline {version}")
    except BaseException:
        run("git", "reset", "--quiet", "--hard", before)
        raise
    for path in sorted((ROOT / "dist").iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    print(f"v{version} is made. To publish it: git push origin main v{version}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("--check", action="append", metavar="COMMAND")
    arguments = parser.parse_args()
    try:
        release(arguments.version, CHECKS if arguments.check is None else arguments.check)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
