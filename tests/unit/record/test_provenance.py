import subprocess

import pytest

from fl_app.record import provenance as module
from fl_app.record.provenance import provenance, source_commit


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository with a package in it, one commit."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "x")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "x@example.org")
    (tmp_path / "fl_app").mkdir()
    (tmp_path / "fl_app" / "a.py").write_text("1\n")
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--no-verify", "-m", "first")
    source_commit.cache_clear()
    yield tmp_path
    source_commit.cache_clear()


def git(folder, *arguments):
    done = subprocess.run(
        ["git", "-c", "commit.gpgsign=false", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_commit_is_that_of_the_source_tree(repository):
    assert source_commit(repository) == (git(repository, "rev-parse", "HEAD"), False)


@pytest.mark.parametrize("file", ["a.py", "my_own_algorithm.py"])
def test_source_that_is_not_committed_is_told(repository, file):
    (repository / "fl_app" / file).write_text("2\n")
    assert source_commit(repository)[1] is True


def test_run_resumed_with_other_software_says_what_it_began_with(monkeypatch):
    began = {**provenance(["num_versions=5"]), "commit": "aaa"}
    again = provenance(["num_versions=9"], began)
    assert again["began_with"] == {"commit": "aaa", "overrides": ["num_versions=5"]}
    monkeypatch.setattr(module, "source_commit", lambda folder: ("bbb", False))
    third = provenance(["num_versions=9"], again)
    assert third["began_with"]["commit"] == "aaa"
