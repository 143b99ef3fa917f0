"""The page of a search: what mattered, what was tried, and how the best settings learn."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from fl_app.report.charts import Figure, dots, layout_of, line_of
from fl_app.report.document import Part, write_document
from fl_app.report.style import Look, looks
from fl_app.search.results import Found, unequal
from fl_app.search.settings import Settings

ENOUGH = 10  # complete trials before their keys' importance says something


def write_page(found: Sequence[Found], settings: Settings, path: Path) -> None:
    """Write the page.

    Args:
        found: of every cell.
        settings: of the search.
        path: of the file.
    """
    drawn = looks([each.algorithm for each in found])
    budget = found[0].budget
    unit = "client updates" if budget[0] == "max_updates" else "seconds"
    facts = [
        ("trials of each cell", str(settings.trials)),
        (f"{unit} of each run", f"{budget[1]:,.10g}"),
        ("seeds of each trial", ", ".join(map(str, settings.seeds))),
        ("rungs", ", ".join(f"{rung:,.10g}" for rung in settings.rungs) or "none"),
        ("score of a trial", f"{settings.measure}, mean over the seeds"),
    ]
    parts = [_best(found, unequal(found, settings)), _importance(found), _course(found, drawn)]
    parts += [_tried(each, look) for each, look in zip(found, drawn, strict=True)]
    write_document(path, "Search", facts, [part for part in parts if part.rows or part.figures])


def _best(found: Sequence[Found], note: str) -> Part:
    texts = [
        "The best complete trial of each cell. Its score was used to choose it, so it is too good: "
        "only runs with fresh seeds (search.test_seeds) compare cells."
    ]
    if any(each.edges for each in found):
        texts.append("A value marked with * is an end of its range: a better one may lie beyond.")
    texts += [note] * bool(note)
    rows = []
    for each in found:
        best, trials = each.study.best, each.study.trials
        pruned = sum(t.state == TrialState.PRUNED and "error" not in t.user_attrs for t in trials)
        rows.append(
            [
                each.name,
                "-" if best is None else f"{best.value:.4g}",
                "-" if best is None else _values(best, each),
                f"{len(trials)}",
                f"{pruned}",
                f"{sum('error' in t.user_attrs for t in trials)}",
                f"{sum(t.user_attrs.get('spent', 0) for t in trials):,}",
            ]
        )
    header = ["cell", "score", "setting", "trials", "ended early", "failed", "client updates"]
    return Part("The best settings", texts, header, rows)


def _values(trial: FrozenTrial, found: Found) -> str:
    return ", ".join(
        f"{_short(key)}={value:.4g}{'*' * (key in found.edges)}"
        if isinstance(value, float)
        else f"{_short(key)}={value}{'*' * (key in found.edges)}"
        for key, value in trial.params.items()
    )


def _short(key: str) -> str:
    return key.rpartition(".")[2]


def _importance(found: Sequence[Found]) -> Part:
    """How much of what sets the best tenth of the trials apart each key explains."""
    rows = []
    for each in found:
        if len(each.space) < 2 or len(_complete(each)) < ENOUGH:
            continue
        shares = get_param_importances(each.study.study, evaluator=PedAnovaImportanceEvaluator())
        rows.append([each.name, ", ".join(f"{_short(k)} {v:.0%}" for k, v in shares.items())])
    text = "Share of each key in what tells the best tenth of the trials, at least one, from the "
    text += f"others (PED-ANOVA), of cells with several keys and at least {ENOUGH} complete trials."
    return Part("Importance", [text], ["cell", "keys"], rows)


def _complete(found: Found) -> list[FrozenTrial]:
    return [trial for trial in found.study.trials if trial.state == TrialState.COMPLETE]


def _course(found: Sequence[Found], drawn: Sequence[Look]) -> Part:
    """The best score so far, by the number of the trial."""
    layout = layout_of("trial", "best score so far", height=340)
    data = []
    for each, look in zip(found, drawn, strict=True):
        best, x, y = -math.inf, [], []
        for trial in _complete(each):
            assert trial.value is not None
            best = max(best, trial.value)
            x.append(trial.number + 1)
            y.append(best)
        if x:
            data.append({**line_of(look), **dots(len(x)), "x": x, "y": y, "name": each.name})
    figures: list[Figure] = [{"data": data, "layout": layout}] if data else []
    return Part("Course of the search", [], figures=figures, wide=True)


def _tried(found: Found, look: Look) -> Part:
    """Scores over the values of each key, and the learning curves of the trials."""
    figures = [_over(found, key, look) for key in found.space]
    figures.append(_curves(found, look))
    text = "Dots are complete trials, crosses those that ended at a rung, or failed after one. "
    text += "The line of the best trial is thick."
    return Part(found.name, [text], figures=[figure for figure in figures if figure["data"]])


def _over(found: Found, key: str, look: Look) -> Figure:
    layout = layout_of(_short(key), "score", legend=False)
    if getattr(found.space[key], "log", False):
        layout["xaxis"]["type"] = "log"
    data = []
    for state, symbol in ((TrialState.COMPLETE, "circle"), (TrialState.PRUNED, "x")):
        points = [
            (trial.params[key], value)
            for trial in found.study.trials
            if trial.state == state and (value := _last(trial)) is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            marker = {"color": look.colour, "symbol": symbol, "size": 8}
            data.append({"type": "scatter", "mode": "markers", "x": x, "y": y, "marker": marker})
    return {"data": data, "layout": layout}


def _last(trial: FrozenTrial) -> float | None:
    """The last score of a trial."""
    values = trial.intermediate_values
    return values[max(values)] if values else None


def _curves(found: Found, look: Look) -> Figure:
    """Score over client updates: means over the seeds of each trial."""
    best, score = found.study.best, _score_of(found)
    data = []
    for trial in found.study.trials:
        tables = [
            pd.read_csv(path)
            for path in sorted((found.folder / str(trial.number)).glob("seed*/metrics.csv"))
            if path.stat().st_size  # else the run was killed before it wrote the first line
        ]
        tables = [table for table in tables if score in table]
        if not tables:
            continue
        shortest = min(len(table) for table in tables)
        mean = sum(table[score].to_numpy()[:shortest] for table in tables) / len(tables)
        spent = sum(t["client_updates"].to_numpy()[:shortest] for t in tables) / len(tables)
        thick = best is not None and trial.number == best.number
        line = line_of(look, 3 if thick else 1)
        line["opacity"] = 1.0 if thick else 0.4
        x = [float(each) for each in spent]
        y = [float(each) if math.isfinite(each) else None for each in mean]
        data.append({**line, "x": x, "y": y, "name": f"trial {trial.number}"})
    return {"data": data, "layout": layout_of("client updates", score, legend=False)}


def _score_of(found: Found) -> str:
    """The metric that is the score of the runs."""
    for path in sorted(found.folder.glob("*/seed*/summary.json")):
        if score := json.loads(path.read_text()).get("score"):
            return str(score)
    return "accuracy"
