"""``--help``, ``--version`` and completion, and what is left where no more is read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fl_app.__main__ import main
from fl_app.cli import CONF, groups
from fl_app.help import help_on


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["fl-app", *words])
    assert main() == 0
    return capsys.readouterr().out


def test_help_tells_examples_groups_and_keys(monkeypatch, capsys) -> None:
    text = said(monkeypatch, capsys, "--help")
    assert "fl-app experiment=quickstart" in text
    for group in groups():
        assert f"  {group}= " in text
    assert "num_versions=100" in text
    assert "published model versions after which a run ends" in " ".join(text.split())
    assert "hydra:" not in text


@pytest.mark.parametrize("group", sorted(groups()))
def test_every_option_says_what_it_is(group: str) -> None:
    lines = help_on([group]).splitlines()[2:]
    starts = [line.split(maxsplit=1) for line in lines if line[2] != " "]
    assert sorted(start[0] for start in starts) == sorted(
        path.stem for path in (CONF / group).glob("*.yaml")
    )
    assert [start for start in starts if len(start) < 2] == []


def test_help_on_an_option_has_what_its_class_and_its_file_say() -> None:
    text = help_on(["algorithm=fedhist"])
    assert "Builds on algorithm/schedule=k_async" in text
    told = " ".join(text.split())
    assert "algorithm.strategy.fusion=0.3 alpha, how much of the most opposite past step" in told
    assert "algorithm.strategy.server_lr=0.35 [A] uploads are mean gradients" in told
    assert "algorithm.client.upload=pseudo" in told


@pytest.mark.parametrize(
    ("word", "meant"), [("device", "devices"), ("task=digit", "did you mean digits")]
)
def test_help_on_nothing_known(monkeypatch, capsys, word: str, meant: str) -> None:
    monkeypatch.setattr(sys, "argv", ["fl-app", "--help", word])
    assert main() == 2
    assert meant in capsys.readouterr().err


def test_bash_completes_groups_and_keys(tmp_path: Path) -> None:
    program = tmp_path / "fl-app"
    program.write_text(f"#!{sys.executable}\nfrom fl_app.__main__ import console\nconsole()\n")
    program.chmod(0o755)
    script = """
        eval "$(fl-app --shell-completion install=bash)"
        complete -p fl-app
        for COMP_LINE in "fl-app algorithm=fedb" "fl-app num_v"; do
            COMP_WORDS=($COMP_LINE) COMP_CWORD=1
            hydra_bash_completion
            echo "${COMPREPLY[@]}"
        done
    """
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    declared, algorithms, keys = done.stdout.splitlines()
    assert "-F hydra_bash_completion fl-app" in declared
    assert "algorithm=fedbuff" in algorithms.split()
    assert "num_versions=" in keys.split()
