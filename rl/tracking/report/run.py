"""The report of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from polymath.rl.tracking import records
from polymath.rl.tracking.before_after import Change, Comparison, compare
from polymath.rl.tracking.panel_view import duration
from polymath.rl.tracking.records import Evaluation, History, RunDataError
from polymath.rl.tracking.report import curves, page
from polymath.rl.tracking.report.charts import dumbbell, number
from polymath.rl.tracking.report.episodes import episodes_section

MODE_NAMES = {"sampled": "sampled at the training temperature", "greedy": "greedy"}

_FACTS = (
    ("model", "model.path"),
    ("steps", "steps"),
    ("groups a step", "groups_per_step"),
    ("episodes a group", "group_size"),
    ("staleness bound", "staleness"),
    ("algorithm", "algorithm.advantage"),
    ("learner", "learner.kind"),
    ("learning rate", "learner.learning_rate"),
    ("engine", "engine.kind"),
    ("seed", "run.seed"),
)
"""What the report shows of the configuration: label and key."""


@dataclass(frozen=True, slots=True)
class Run:
    """All that a report needs of a run folder."""

    folder: Path
    name: str
    history: History
    evaluations: Sequence[Evaluation]
    about: Mapping[str, Any]
    config: Mapping[str, Any]
    config_text: str


def read_run(folder: Path) -> Run:
    """Read a run folder. Raises ``RunDataError`` if it holds no metrics or a file is damaged."""
    if not folder.is_dir():
        raise RunDataError(f"{folder} is not a run folder: there is no such folder")
    text, config = _read_config(folder / records.CONFIG)
    return Run(
        folder=folder,
        name=folder.resolve().name,
        history=records.read_history(folder),
        evaluations=records.read_evaluations(folder),
        about=records.read_json(folder / records.ABOUT),
        config=config,
        config_text=text,
    )


def write_report(
    run_folder: Path,
    output: Path | None = None,
    *,
    episodes: Sequence[Mapping[str, Any]] | None = None,
) -> Path:
    """Write the report of a run, by default as ``report.html`` in its folder, and return its path.

    ``episodes`` are rows of the table of example episodes; without them those that the run logged
    are used. Raises ``RunDataError`` if the run has no metrics or a file is damaged,
    ``TrackingError`` if the page cannot be written.
    """
    run = read_run(run_folder)
    rows = episodes if episodes is not None else records.read_table(run_folder, records.EPISODES)
    comparisons = compare(run.evaluations)
    path = output or run_folder / "report.html"
    body = [
        _header(run, comparisons),
        _before_after(comparisons),
        curves.reward_section(run.history, run.evaluations),
        curves.learning_section(run.history),
        curves.speed_section(run.history),
        curves.outcome_section(run.history),
        _ledger(run.history),
        episodes_section(rows),
        _configuration(run),
    ]
    page.write_page(path, f"{run.name} · Polymath", body)
    return path


def verdict_class(change: Change) -> str:
    """The CSS class of a change."""
    return {"up": "good", "down": "bad", "flat": "quiet"}[change.verdict]


def gain_cell(change: Change) -> str:
    """A gain with its standard error, as HTML."""
    kind = verdict_class(change)
    return f'<span class="{kind}">{change.gain:+.3f}</span> <small>± {change.stderr:.3f}</small>'


def started(run: Run) -> str:
    """Date and time at which the run began, UTC."""
    begun = run.about.get("started") or run.history.started
    if not isinstance(begun, int | float):
        return ""
    return datetime.fromtimestamp(begun, UTC).strftime("%-d %B %Y, %H:%M UTC")


def _header(run: Run, comparisons: Sequence[Comparison]) -> str:
    history = run.history
    figures = []
    for comparison in comparisons:
        total = comparison.total
        figures.append(
            (f"held-out, {comparison.mode}", f"{total.before.mean:.3f} → {total.after.mean:.3f}")
        )
    seconds = sum(value for _, value in history.series("seconds/step"))
    trained = sum(value for _, value in history.series("tokens/trained"))
    figures.append(("optimizer steps", f"{history.steps[-1]}"))
    if seconds:
        figures.append(("time in steps", duration(seconds)))
    if trained:
        figures.append(("tokens trained", number(trained)))
    packages = run.about.get("packages")
    versions = (
        ", ".join(f"{k} {v}" for k, v in packages.items()) if isinstance(packages, Mapping) else ""
    )
    described = [(label, _lookup(run.config, key)) for label, key in _FACTS]
    long = [
        ("domains", ", ".join(_domains(run))),
        ("machine", str(run.about.get("machine", ""))),
        ("software", versions),
    ]
    return (
        f'<h1>{escape(run.name)}</h1><div class="quiet">Polymath run, begun {escape(started(run))}</div>'
        f"{_lead(comparisons)}{page.tiles(figures)}"
        f"{page.card(page.facts(described, two_columns=True) + page.facts(long))}"
    )


def _lead(comparisons: Sequence[Comparison]) -> str:
    if not comparisons:
        return (
            '<p class="lead quiet">Held-out tasks were not evaluated before and after this run.</p>'
        )
    first = comparisons[0]
    total = first.total
    word = {"up": "rose", "down": "fell", "flat": "did not change beyond the noise:"}[total.verdict]
    text = (
        f"Held-out reward ({MODE_NAMES[first.mode]}) {word} from {total.before.mean:.3f} to "
        f'{total.after.mean:.3f}, <span class="{verdict_class(total)}">{total.gain:+.3f}</span> '
        f"± {total.stderr:.3f}, over {len(first.domains)} domains and {total.after.n:,} episodes each time. "
    )
    if first.bystanders:
        text += f"No gain beyond the noise: {escape(', '.join(first.bystanders))}."
    else:
        text += "Every domain takes part in the gain."
    return f'<p class="lead">{text}</p>'


def _before_after(comparisons: Sequence[Comparison]) -> str:
    cards = []
    for comparison in comparisons:
        changes = [*comparison.domains, comparison.total]
        top = max(1.0, *(side.mean for change in changes for side in (change.before, change.after)))
        rows = [
            [
                "all domains" if change is comparison.total else escape(change.name),
                f"{change.before.n:,} / {change.after.n:,}",
                f"{change.before.mean:.3f} <small>± {change.before.stderr:.3f}</small>",
                f"{change.after.mean:.3f} <small>± {change.after.stderr:.3f}</small>",
                gain_cell(change),
                dumbbell(
                    (change.before.mean, change.before.stderr),
                    (change.after.mean, change.after.stderr),
                    top,
                ),
            ]
            for change in changes
        ]
        header = ["domain", "episodes", "before", "after", "gain", f"0 to {number(top)}"]
        title = MODE_NAMES[comparison.mode]
        cards.append(page.card(page.table(header, rows, total=True), title[0].upper() + title[1:]))
    note = (
        "Reward from the real verifiers on task seeds that training never draws; ± is one standard error, "
        "levels pooled within a domain, domains weighted equally. A gain is coloured where it exceeds "
        "1.96 standard errors."
    )
    return page.section("Before and after, on held-out tasks", note, *cards)


def _ledger(history: History) -> str:
    sampled = history.last("ledger/sampled")
    if not sampled:
        return ""
    drops = {k: v[-1][1] for k, v in history.labelled("ledger/dropped/<reason>").items()}
    lines = [
        ("trained", history.last("ledger/consumed") or 0.0),
        *((f"dropped: {reason.replace('_', ' ')}", value) for reason, value in drops.items()),
        ("pending", history.last("ledger/pending") or 0.0),
        ("not for training (evaluation)", history.last("ledger/not_for_training") or 0.0),
    ]
    rest = sampled - sum(value for _, value in lines)
    rows = [
        [escape(name), f"{value:,.0f}", f"{value / sampled:.1%}", _share(value / sampled)]
        for name, value in lines
    ]
    if abs(rest) >= 0.5:
        rows.append(
            [
                '<span class="bad">unaccounted for</span>',
                f"{rest:,.0f}",
                f"{rest / sampled:.1%}",
                "",
            ]
        )
    rows.append(["sampled", f"{sampled:,.0f}", "100%", _share(1.0)])
    note = "Where every sampled token went, over the whole run."
    return page.section(
        "Ledger", note, page.card(page.table(["tokens", "number", "share", ""], rows, total=True))
    )


def _share(part: float) -> str:
    return f'<span class="share" style="width:{max(0.0, part) * 200:.1f}px"></span>'


def _configuration(run: Run) -> str:
    if not run.config_text:
        return ""
    text = escape(run.config_text)
    text = f"<details><summary>config.yaml, as resolved</summary><pre>{text}</pre></details>"
    return page.section("Configuration", "What this run was started with.", page.card(text))


def _domains(run: Run) -> list[str]:
    mixture = run.config.get("mixture")
    domains = mixture.get("domains") if isinstance(mixture, Mapping) else None
    if isinstance(domains, Mapping) and domains:
        return [str(name) for name in domains]
    return list(run.history.labelled("reward/domain/<domain>"))


def _lookup(config: Mapping[str, Any], dotted: str) -> str:
    value: Any = config
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)


def _read_config(path: Path) -> tuple[str, Mapping[str, Any]]:
    from omegaconf import OmegaConf

    if not path.exists():
        return "", {}
    try:
        text = path.read_text("utf-8")
        config = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # YAML and OmegaConf have classes of their own
        raise RunDataError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
    return text, {str(key): value for key, value in config.items()} if isinstance(
        config, dict
    ) else {}
