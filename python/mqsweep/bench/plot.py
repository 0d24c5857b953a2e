"""The figures as a picture: total time, and the worst wait of a bystander."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from .cases import Case
from .contenders import NAMES, ONE_CALL
from .record import CaseResult, Report, Result

# Told apart by people of any colour vision, and by their markers.
_LOOKS = {
    "rust": ("#D55E00", "o"),
    "python": ("#0072B2", "s"),
    "idiom": ("#56B4E9", "v"),
    "script": ("#999999", "D"),
    "bullmq": ("#000000", "X"),
}
_PANELS = (("total time", "seconds"), ("worst wait of a bystander", "worst"))
_STYLES = ("-", "--", ":", "-.")
FORMATS = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Refuse what cannot be drawn, before anything is measured.

    Raises:
        ConfigurationError: another kind of file, or no matplotlib.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigurationError(f"plot={path.name!r}: must end in {' or '.join(FORMATS)}")
    _matplotlib()


def draw(reports: Sequence[Report], path: Path) -> None:
    """Draw reports into one picture: lines over the size where there are several, else bars.

    Args:
        reports: to show together.
        path: of the file, which ends in ``.png`` or ``.svg``.

    Raises:
        ConfigurationError: another kind of file, or no matplotlib.
    """
    check_plot(path)
    figure_of, style = _matplotlib()
    cases = [(case, report.limit) for report in reports for case in report.cases]
    with style:
        if len({case.case.active for case, _ in cases}) > 1:
            figure = _lines(figure_of, cases)
        else:
            figure = _bars(figure_of, cases)
        dateless = {"Date": None} if path.suffix.lower() == ".svg" else None  # the same figures give the same file
        figure.savefig(path, dpi=150, metadata=dateless)


def _matplotlib() -> Any:
    """The class of figures, and the settings for them; without pyplot, so no display is looked for."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("a plot needs matplotlib: pip install 'mqsweep[bench]'") from None
    settings: Any = {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "mqsweep",
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "axes.axisbelow": True,
    }
    return Figure, matplotlib.rc_context(settings)


def _figure(
    figure_of: Any, columns: int, reports: Sequence[CaseResult], width: float, height: float
) -> tuple[Any, Any]:
    figure = figure_of(figsize=(width, height), layout="constrained", facecolor="white")
    servers = " and ".join(dict.fromkeys(case.server for case in reports))
    figure.suptitle(f"One stalled check, {servers}", x=0.01, ha="left", fontweight="bold")
    return figure, figure.subplots(columns, len(_PANELS), squeeze=False)


def _value(result: Result, figure: str, limit: float) -> tuple[float | None, bool]:
    """A figure of a result, and whether it is only known to be more."""
    if result.outcome == "over":
        return (limit if figure == "seconds" or result.contender in ONE_CALL else None), True
    if not result.measured:
        return None, False
    return (result.middle("seconds") if figure == "seconds" else result.waits().worst), False


def _lines(figure_of: Any, cases: Sequence[tuple[CaseResult, float]]) -> Any:
    """A row of panels per share of dead jobs, a line per contender."""
    shares = list(dict.fromkeys(_share(case.case) for case, _ in cases))
    variants = list(dict.fromkeys(_variant(case) for case, _ in cases))
    figure, axes = _figure(figure_of, len(shares), [case for case, _ in cases], 11, 0.6 + 3.6 * len(shares))
    for row, share in enumerate(shares):
        for column, (label, what) in enumerate(_PANELS):
            axis = axes[row][column]
            for name, (number, variant) in product(NAMES, enumerate(variants)):
                chosen = [(c, limit) for c, limit in cases if _share(c.case) == share and _variant(c) == variant]
                _line(axis, name, list(_points(chosen, name, what)), _STYLES[number % len(_STYLES)])
            axis.set(xscale="log", yscale="log", title=f"{label}, {share}")
            axis.set_xlabel("active jobs" if row == len(shares) - 1 else "")
            _readable(axis, sorted({c.case.active for c, _ in cases}))
    _legend(figure, axes, variants)
    return figure


def _points(cases: Sequence[tuple[CaseResult, float]], name: str, what: str) -> Iterator[tuple[int, float, bool]]:
    for case, limit in sorted(cases, key=lambda each: each[0].case.active):
        result = case.result(name)
        if result is not None:
            value, more = _value(result, what, limit)
            if value is not None:
                yield case.case.active, value, more


def _line(axis: Any, name: str, points: Sequence[tuple[int, float, bool]], style: str) -> None:
    colour, marker = _LOOKS[name]
    known = [(x, y) for x, y, more in points if not more]
    if known:
        axis.plot(*zip(*known, strict=True), color=colour, marker=marker, linestyle=style, markersize=5, label=name)
    for x, y, more in points:
        if more:
            axis.plot([x], [y], color=colour, marker="^", markersize=8, linestyle="")
            axis.annotate(
                f"> {_duration(y)} ", (x, y), xytext=(-6, 0), textcoords="offset points", ha="right", va="center"
            )
            if known:
                axis.plot(*zip(known[-1], (x, y), strict=True), color=colour, linestyle=":", linewidth=1)


def _bars(figure_of: Any, cases: Sequence[tuple[CaseResult, float]]) -> Any:
    """A group of bars per case."""
    names = [name for name in NAMES if any(case.result(name) for case, _ in cases)]
    height = 1.2 + len(cases) * (0.25 + 0.17 * len(names))
    figure, axes = _figure(figure_of, 1, [case for case, _ in cases], 11, height)
    size = 0.84 / len(names)
    for axis, (label, what) in zip(axes[0], _PANELS, strict=True):
        for slot, name in enumerate(names):
            for group, (case, limit) in enumerate(cases):
                result = case.result(name)
                value, more = _value(result, what, limit) if result else (None, False)
                if value is None:
                    continue
                at = group + (slot - (len(names) - 1) / 2) * size
                axis.barh(at, value, size * 0.9, color=_LOOKS[name][0], label=name if group == 0 else None)
                text = f" > {_duration(value)}" if more else f" {_duration(value)}"
                axis.annotate(text, (value, at), va="center", fontsize=7)
        axis.set(xscale="log", title=label, yticks=range(len(cases)), yticklabels=[_label(c) for c, _ in cases])
        axis.invert_yaxis()
        axis.grid(visible=False, axis="y")
        axis.margins(x=0.12)
        axis.xaxis.set_major_formatter(_duration)
    axes[0][1].set_yticklabels([])
    _legend(figure, axes, [])
    return figure


def _legend(figure: Any, axes: Any, variants: Sequence[str]) -> None:
    found = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    names = [name for name in NAMES if name in found]
    note = "; ".join(f"{_STYLES[i % len(_STYLES)]} {text}" for i, text in enumerate(variants)) if variants[1:] else ""
    figure.legend(
        [found[name] for name in names], names, loc="outside lower left", ncols=len(names), frameon=False, title=note,
        alignment="left",
    )  # fmt: skip


def _readable(axis: Any, sizes: Sequence[int]) -> None:
    """Ticks at the sizes and at decades, and at 2 and 5 between them where there are few."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    axis.xaxis.set_major_locator(FixedLocator(sizes))
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 1000 else (1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(_duration)
    for each in (axis.xaxis, axis.yaxis):
        each.set_minor_locator(NullLocator())


def _duration(value: float, _: object = None) -> str:
    return f"{value * 1000:.3g} ms" if value < 0.9995 else f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"


def _share(case: Case) -> str:
    share = 100 * case.dead / case.active
    return "all dead" if share == 100 else f"{share:.2g} % dead" if case.dead else "no job dead"


def _variant(case: CaseResult) -> str:
    return f"{case.server}, ids {case.case.ids}, marks {case.case.marks}"


def _label(case: CaseResult) -> str:
    return f"{case.case.active:,} active\n{_share(case.case)}\n{case.server}, {case.case.ids}"
