"""Everything that is seen of a run: metrics, sinks, terminal panel and report.

One writer, one clock: the controller owns the `Tracker`, and a step is an optimizer step.

- `metrics` declares every metric; nothing else can be logged.
- `records` are the files of a run and how they are read back.
- `tracker` writes them and passes them on to `sinks`.
- `panel` shows the run in the terminal; `terminal` keeps library output out of it.
- `report` makes the HTML page, `before_after` the table at the end.
"""
