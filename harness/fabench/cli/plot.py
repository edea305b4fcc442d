"""`fabench plot`: result files as pictures."""

from __future__ import annotations

from pathlib import Path

import click

from fabench.cli.stdout import say
from fabench.errors import UsageError
from fabench.input_files import given_once
from fabench.output_files import writing

SUFFIXES = (".png", ".svg", ".pdf")
OTHERS = (".gif", ".jpg", ".jpeg", ".webp", ".eps", ".ps", ".tif", ".tiff", ".bmp", ".html")
"""What a folder is not called."""
DPI = 160


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="NAME",
    help="tflops, roofline, memory, accuracy or speedup. Repeatable. [default: all]",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    default=Path("plots"),
    show_default=True,
    help="A .png, .svg or .pdf for one kind; else a folder, which gets a .png and an .svg a kind.",
)
@click.option("--where", metavar="COND", help="Only rows that match, e.g. 'd=128,backend=sdpa-*'.")
@click.option("--baseline", metavar="BACKEND", help="What speed-ups are against. [default: the suite's baseline]")
@click.option(
    "--against",
    multiple=True,
    metavar="FILE",
    help="Beside ours, the same problems of another file: of published/fa3_h100, say, or of an older run.",
)
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True)
@click.option("--allow-partial", is_flag=True, help="Plot what is there of a file that was cut off.")
def command(
    files: tuple[str, ...],
    kinds: tuple[str, ...],
    out: Path,
    where: str | None,
    baseline: str | None,
    against: tuple[str, ...],
    theme: str,
    allow_partial: bool,
) -> None:
    """Draw plots of one or more result files and print the name of each picture written."""
    from fabench.cli.targets import check_targets
    from fabench.resultfile import read
    from fabench.views.plots import KINDS, figure, kind_named, omission
    from fabench.views.plots.style import THEMES, styled
    from fabench.views.published import find, read_against
    from fabench.views.show import placed
    from fabench.where import Condition

    chosen = [kind_named(name) for name in kinds] or list(KINDS.values())
    if out.suffix.lower() in OTHERS:
        raise UsageError(f"'--out' must end in .png, .svg or .pdf, or be a folder, got '{out}'")
    single = out.suffix.lower() in SUFFIXES
    if single and len(chosen) > 1:
        raise UsageError(f"'--out' must be a folder for {len(chosen)} kinds of plot, got '{out}'; add --kind for one")
    sources = [find(name) for name in against]
    places = {kind: [out] if single else [out / f"{kind.name}{suffix}" for suffix in SUFFIXES[:2]] for kind in chosen}
    check_targets([path for paths in places.values() for path in paths], [*map(Path, files), *sources])
    given_once(files)
    results = [read(file, allow_partial=allow_partial, samples=False) for file in files]
    others = read_against(against, allow_partial)
    for warning in (text for result in [*results, *others] for text in result.warnings):
        click.echo(f"Warning: {warning}", err=True)
    condition = None if where is None else Condition.parse(where)
    outcomes = placed(results, condition, baseline, others)
    if not outcomes:
        raise UsageError("no row is left to plot; widen --where, or look into the file with 'fabench validate'")
    written = 0
    for kind in chosen:
        picture = figure(kind, outcomes, THEMES[theme])
        told = ["nothing to plot"] if picture is None else []
        if told := [*told, *filter(None, [omission(kind, outcomes)])]:
            click.echo(f"{kind.name}: {'; '.join(told)}", err=True)
        if picture is None:
            continue
        for path in places[kind]:
            with writing(path), styled(THEMES[theme]):
                picture.savefig(path, dpi=DPI, metadata=_metadata(path))
            say(str(path))
            written += 1
    if not written:
        raise UsageError("the files hold nothing to plot: no row has a speed, a memory or an error")


def _metadata(path: Path) -> dict[str, str | None]:
    """No date in the file: the same rows give the same bytes."""
    return {"Date": None} if path.suffix == ".svg" else {"CreationDate": None} if path.suffix == ".pdf" else {}
