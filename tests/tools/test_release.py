"""`make release` refuses what must not be released, and leaves nothing of a release that fails."""

from __future__ import annotations

import importlib.util
import subprocess
import tomllib
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- New.\n\n## [0.1.0] - 2026-01-01\n\n- Old.\n"
MAKEFILE = "wheel:\n\tmkdir -p dist && touch dist/feedline.whl\n"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool in a small repository, on main, with a release 0.1.0."""
    spec = importlib.util.spec_from_file_location("release_tool", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "write_bill", lambda wheel, version: wheel)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "x")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "x@example.org")
    files = {
        "pyproject.toml": '[project]\nname = "feedline"\nversion = "0.1.0"\n',
        "CHANGELOG.md": CHANGELOG,
        "deploy/kubernetes/kustomization.yaml": '  newTag: "0.1.0"\n',
        "Makefile": MAKEFILE,
        ".gitignore": "dist/\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    git(tmp_path, "tag", "v0.1.0")
    return module


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_a_release_is_a_commit_with_its_version_and_a_tag(tool: ModuleType, tmp_path: Path):
    tool.release("0.2.0", ["grep -q 0.2.0 pyproject.toml"])
    assert git(tmp_path, "describe", "--exact-match") == "v0.2.0"
    assert git(tmp_path, "cat-file", "-t", "v0.2.0") == "tag"
    assert git(tmp_path, "status", "--porcelain") == ""
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["version"] == "0.2.0"
    assert (tmp_path / "deploy/kubernetes/kustomization.yaml").read_text() == '  newTag: "0.2.0"\n'
    today = date.today().isoformat()
    changelog = (tmp_path / "CHANGELOG.md").read_text()
    assert changelog.startswith(f"# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - {today}\n\n- New.\n\n## [0.1.0]")


@pytest.mark.parametrize("check", ["false", "echo lost > new; exit 3"])
def test_a_release_that_fails_leaves_the_checkout_as_it_was(tool: ModuleType, tmp_path: Path, check: str):
    before = git(tmp_path, "rev-parse", "HEAD")
    with pytest.raises(tool.ReleaseError, match="failed with exit status"):
        tool.release("0.2.0", [check])
    assert git(tmp_path, "rev-parse", "HEAD") == before
    assert git(tmp_path, "diff", "HEAD") == ""
    assert git(tmp_path, "tag") == "v0.1.0"


@pytest.mark.parametrize("version", ["0.1.0", "0.1.0rc1", "0.0.9", "1.0", "v0.2.0", "0.2.0-1", ""])
def test_versions_that_are_none_or_not_newer_are_refused(tool: ModuleType, version: str):
    with pytest.raises(tool.ReleaseError, match=r"no version|not newer"):
        tool.release(version, [])


def test_what_is_not_on_main_not_committed_or_not_described_is_refused(tool: ModuleType, tmp_path: Path):
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG.replace("- New.\n", ""))
    with pytest.raises(tool.ReleaseError, match=r"not committed.*\n M CHANGELOG|not committed.*\nM CHANGELOG"):
        tool.release("0.2.0", [])
    git(tmp_path, "commit", "--quiet", "--all", "--message", "empty")
    with pytest.raises(tool.ReleaseError, match="nothing below"):
        tool.release("0.2.0", [])
    git(tmp_path, "switch", "--quiet", "--create", "other")
    with pytest.raises(tool.ReleaseError, match="from main: got other"):
        tool.release("0.2.0", [])


def test_versions_are_in_the_order_of_releases(tool: ModuleType):
    versions = ["0.2.0a1", "0.2.0b1", "0.2.0rc1", "0.2.0rc2", "0.2.0", "0.2.1", "0.10.0", "1.0.0"]
    shuffled = [versions[index] for index in (5, 2, 7, 0, 4, 1, 6, 3)]
    assert sorted(shuffled, key=tool.order) == versions
