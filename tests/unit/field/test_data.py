"""What the doctor says of a device's own data."""

import json
from pathlib import Path

import pytest
from configs import composed

from fl_app.field.data import check_path, of_data
from fl_app.field.doctor import of_settings
from fl_app.field.findings import Finding, Verdict
from fl_app.field.kit import Kit, new_kit

SCHEMA = {
    "format": 1,
    "kind": "classification",
    "input_shape": [1],
    "outputs": ["no", "perhaps", "yes"],
    "targets": ["ill"],
    "columns": [{"name": "age", "mean": 50.0, "deviation": 20.0}],
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def told(data: Path, folder: Path, *overrides: str) -> dict[str, Finding]:
    schema = folder / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    run = composed("task=csv", f"task.schema={schema}", "task.holdout=0.2", *overrides)
    return {finding.subject: finding for finding in of_data(str(data), run)}


def table(folder: Path, *rows: str) -> Path:
    path = folder / "a.csv"
    path.write_text("\n".join(["age,ill", *rows]) + "\n")
    return path


def test_what_a_run_finds_in_sound_data(tmp_path: Path) -> None:
    found = told(table(tmp_path, *["30,yes", "40,no"] * 5), tmp_path)
    assert found["data"].text == f"{tmp_path}/a.csv"
    assert found["examples"] == Finding(
        "examples", Verdict.GOOD, "8 to train on, 2 kept for validation"
    )


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], "no rows"),
        (["30,yes"], "too few: there are 1, and a client needs at least 2 with task.holdout > 0"),
        (["30,yes", "40,maybe"], "maybe"),
        (["30,yes", "forty,no"], "forty"),
    ],
)
def test_data_that_a_run_cannot_use(tmp_path: Path, rows: list[str], text: str) -> None:
    found = told(table(tmp_path, *rows), tmp_path)["examples"]
    assert found.verdict is Verdict.WRONG
    assert text in found.text
    assert found.mend


def test_a_task_that_reads_no_data_of_a_devices_own(tmp_path: Path) -> None:
    (_, found) = of_data(str(table(tmp_path, "30,yes")), composed("task=digits"))
    assert "fl_app.tasks.made.Digits reads no data of a node's own" in found.text


def test_without_a_run_only_the_files_are_checked(tmp_path: Path) -> None:
    _, found = of_data(str(table(tmp_path, "30,yes")), None)
    assert found.verdict is Verdict.UNKNOWN
    assert "doctor FOLDER task=csv task.schema=FILE" in found.mend


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    for path, text in (
        (str(tmp_path / "none"), "none does not exist"),
        ("relative/a.csv", "is no absolute path"),
        ("/srv/it's", "has a quote in it"),
    ):
        (found,) = of_data(path, None)
        assert found.verdict is Verdict.WRONG
        assert text in found.text


def test_a_service_has_a_tmp_of_its_own(tmp_path: Path) -> None:
    table(tmp_path, "30,yes")
    found = check_path(str(tmp_path))
    hidden = tmp_path.is_relative_to("/tmp")
    assert found.verdict is (Verdict.UNKNOWN if hidden else Verdict.GOOD)
    assert check_path("/etc/hostname").verdict is Verdict.GOOD


def test_the_doctor_looks_into_the_data_of_a_device(tmp_path: Path) -> None:
    new_kit(tmp_path / "out", nodes=1, hosts=["127.0.0.1"], insecure=True)
    data = table(tmp_path, *["30,yes", "40,no"] * 5)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    settings = tmp_path / "out" / "node-0" / "node.env"
    settings.write_text(settings.read_text().replace('DATA=""', f'DATA="{data}"'))
    kit = Kit.read(settings.parent, {})
    for words, verdict in (
        ([], Verdict.UNKNOWN),
        (["task=csv", f"task.schema={schema}"], Verdict.GOOD),
    ):
        verdicts = {finding.subject: finding.verdict for finding in of_settings(kit, words)}
        assert verdicts.keys() == {"partition", "data", "examples"}
        assert verdicts["examples"] is verdict
    (wrong,) = [f for f in of_settings(kit, ["task=cvs"]) if f.subject == "run"]
    assert "task=cvs does not exist; did you mean" in wrong.text
