"""`fabench report`: one page that needs nothing else, as text and in headless Chromium."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

import resultfiles as make
from fabench.cli import main
from fabench.names import FLAGS
from fabench.records import Telemetry
from fabench.views import notes
from fabench.views.plots import KINDS
from fabench.views.published import folder
from show_files import sweep

VOID = {"meta", "link", "br", "hr", "img", "input"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: `apt-get install chromium`")


def report(path: Path, *options: object, code: int = 0) -> str:
    """The page written for a file, or the command's output if it fails."""
    page = path.parent / "out" / "report.html"
    result = CliRunner().invoke(main, ["report", str(path), "-o", str(page), *map(str, options)])
    assert result.exit_code == code, result.output
    return page.read_text() if code == 0 else result.output


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of the sweep in which backends end in every way."""
    return report(sweep(tmp_path_factory.mktemp("report") / "sweep.jsonl"))


class _Checker(HTMLParser):
    """Collects ids, outward references and text; fails on tags that do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.references: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.references.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(page: str) -> _Checker:
    checker = _Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return checker


def words(page: str) -> str:
    return " ".join(" ".join(checked(page).text).split())


def test_the_page_is_well_formed_and_every_id_is_unique(page: str) -> None:
    ids = checked(page).ids

    assert {name for name, count in ids.items() if count > 1} == set()
    assert {"verdicts", "environment", "speed", "doubts", "rows"} <= set(ids)


def test_the_page_needs_nothing_beside_it(page: str) -> None:
    checker = checked(page)

    outward = [reference for reference in checker.references if not reference.startswith(("#", "data:"))]
    assert outward == []
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert "url(http" not in page
    assert {reference[1:] for reference in checker.references if reference.startswith("#")} <= set(checker.ids)


def test_panels_of_a_single_length_are_named_on_the_page(tmp_path: Path) -> None:
    path = make.build(tmp_path / "run.jsonl", [make.row(make.case(d=d)) for d in (64, 128)])

    report(path)

    assert (tmp_path / "out" / "report.html").read_text().count(
        "2 panels of a single length left out: d 64; d 128"
    ) == 2


def test_every_kind_of_plot_is_a_section_of_svg(page: str) -> None:
    for kind in KINDS.values():
        assert f'id="plot-{kind.name}"' in page
        assert kind.title in page
    assert page.count("<svg") == 2 + 1 + 2 + 2 + 1  # tflops, roofline, memory, accuracy, speedup
    assert page.count('role="img" aria-label="') == page.count("<svg")


def test_the_plots_say_what_all_their_problems_share(page: str) -> None:
    assert words(page).count("NVIDIA H200, burst, forward, bf16, heads 16, d 128, batch = 16384/N") >= len(KINDS)


def test_plots_take_their_ink_from_the_page(page: str) -> None:
    assert "var(--ink)" in page[page.index("<svg") :]
    assert "#010203" not in page
    assert "#040506" not in page


def test_verdicts_reasons_and_reruns_are_told(page: str) -> None:
    text = words(page)

    for expected in ("19 ok", "6 unavailable", "3 wrong_result", "2 predicted_oom", "rho 37.2 > 4",
                     "fabench run example --row-id", "needs 68.7 GB, 40.1 GB are free",
                     "cannot import xformers: no such module", "throttled", "NVIDIA H200", "torch 2.11.0",
                     "30 of 30 rows, complete"):  # fmt: skip
        assert expected in text


def test_every_flag_is_counted_and_explained_on_the_page(tmp_path: Path) -> None:
    path = make.build(
        tmp_path / "run.jsonl", [make.row(make.case(1024 * i), flags=[f]) for i, f in enumerate(FLAGS, 1)]
    )

    text = words(report(path))
    for flag, meaning in notes.FLAGS.items():
        assert f"{flag} 1 {meaning} sdpa-flash" in text


def test_all_rows_are_on_the_page(page: str) -> None:
    rows = page[page.index('id="rows"') :]

    assert rows.count('<td class="label">mine_v1</td>') == 6
    assert rows.count("<tr>") == 30 + 1


def test_what_a_backend_says_is_escaped(tmp_path: Path) -> None:
    row = make.row(make.case(), "a<b>", status="error", detail="<script>alert(1)</script> & more")

    page = report(make.build(tmp_path / "run.jsonl", [row]))

    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page
    checked(page)


def test_a_file_without_a_speed_is_still_a_report(tmp_path: Path) -> None:
    row = make.row(make.case(), status="unavailable", detail="not here")

    text = words(report(make.build(tmp_path / "run.jsonl", [row])))

    assert "No row failed." in text
    assert "not here" in text


def test_clocks_are_told_where_they_were_read(tmp_path: Path) -> None:
    readings = [
        Telemetry(
            sm_clock_mhz_mean=clock, sm_clock_mhz_min=clock - 300, power_w_mean=500, temperature_c_max=60 + i, polls=5
        )
        for i, clock in enumerate((1800, 1900))
    ]
    rows = [make.row(make.case(N), telemetry=t) for N, t in zip((1024, 2048), readings, strict=True)]

    text = words(report(make.build(tmp_path / "run.jsonl", rows)))

    assert "sdpa-flash 1850 1500 500 61" in text


def test_published_figures_stand_beside_ours_with_their_claims(tmp_path: Path) -> None:
    path = make.build(tmp_path / "run.jsonl", [make.row(make.case(4096, batch=4, dtype="fp16"), "flash-attn-3")])

    page = report(path, "--against", "fa3_h100")

    assert "FA3 [fa3_h100]" in words(page)
    assert "published, not measured here: Shah" in words(page)
    assert "fastest fp16 forward of FA3" in words(page)
    assert "FA3 [fa3_h100]" not in page[page.index('id="rows"') :]


@pytest.mark.parametrize("name", ["thunderkittens_h100", "decode_h200", "fa3_h100"])
def test_published_figures_alone_are_a_report_without_a_verdict(tmp_path: Path, name: str) -> None:
    text = words(report(Path(shutil.copy(folder() / f"{name}.jsonl", tmp_path))))

    assert "none of this was measured by fabench, so there is no verdict" in text
    assert "published, not measured here: " in text
    assert "No row failed" not in text


def test_a_published_file_was_published_and_says_nothing_of_software(tmp_path: Path) -> None:
    text = words(report(Path(shutil.copy(folder() / "fa3_h100.jsonl", tmp_path))))

    assert "published 2024-07-11 " in text
    assert "fastest fp16 forward of FA3" in text
    assert "measured 2024" not in text
    assert "not stated" not in text


def test_a_source_without_a_figure_of_a_problem_is_a_page_of_its_statements(tmp_path: Path) -> None:
    text = words(report(Path(shutil.copy(folder() / "fa4_b200.jsonl", tmp_path))))

    assert "fastest bf16 forward of FA4, 71 % of the B200's peak: 1613 TFLOP/s" in text
    assert "All rows" not in text


def test_two_devices_are_told_apart(tmp_path: Path) -> None:
    for model in ("H100", "H200"):
        make.build(
            tmp_path / f"{model}.jsonl", [make.row(make.case(N)) for N in (1024, 2048)], envs=[make.env(model=model)]
        )

    page = report(tmp_path / "H100.jsonl", tmp_path / "H200.jsonl")

    assert "example on H100, H200" in words(page)
    checked(page)


def test_what_was_measured_on_is_told_once_for_several_files_of_a_machine(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.jsonl" for name in ("one", "two")]
    for file in files:
        make.build(file, [make.row(make.case(1024))], head=make.header(suite={"name": file.stem}))

    assert report(*files).count("<dt>driver</dt>") == report(files[0]).count("<dt>driver</dt>")


def test_the_same_files_give_the_same_page(tmp_path: Path) -> None:
    path = make.build(tmp_path / "run.jsonl", [make.row(make.case(N)) for N in (1024, 2048)])

    assert report(path) == report(path)


def test_nothing_left_to_report_is_a_sentence(tmp_path: Path) -> None:
    path = sweep(tmp_path / "sweep.jsonl")

    assert "no row is left to report; widen --where" in report(path, "--where", "N=7", code=2)


def test_a_page_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    path = make.build(tmp_path / "run.jsonl", [make.row(make.case())])
    (tmp_path / "out").write_text("a file where the folder should be")

    assert "cannot be written: " in report(path, code=2)


# ---- in a browser -----------------------------------------------------------------------------------------------


def chromium(page: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open the page headless and return what the browser printed."""
    file = folder / "page.html"
    file.write_text(page)
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
        f"--user-data-dir={folder / 'profile'}", *options, file.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def dom(page: str, folder: Path, *options: str, script: str = "") -> str:
    """The page's DOM after its scripts, and `script`, have run; there must be no word on the console."""
    page = page.replace("</body>", f"<script>{script}</script></body>") if script else page
    done = chromium(page, folder, "--dump-dom", *options)
    assert "CONSOLE" not in done.stderr
    return done.stdout


def pixel(page: str, folder: Path, *options: str) -> tuple[int, ...]:
    """The colour of the page's upper left corner."""
    from PIL import Image

    shot = folder / "shot.png"
    chromium(page, folder, f"--screenshot={shot}", *options)
    with Image.open(shot) as image:
        return image.convert("RGB").getpixel((2, 2))  # type: ignore[return-value]


@needs_chromium
def test_the_console_stays_silent_and_the_heads_become_buttons(page: str, tmp_path: Path) -> None:
    heads = re.findall(r'<table class="sortable">.*?</thead>', page, re.DOTALL)

    assert dom(page, tmp_path).count("<button") == sum(head.count("<th ") for head in heads) > 20


@needs_chromium
def test_a_console_error_would_be_seen(page: str, tmp_path: Path) -> None:
    broken = page.replace("</body>", "<script>undefinedFunction()</script></body>")

    assert "undefinedFunction" in chromium(broken, tmp_path, "--dump-dom").stderr


@needs_chromium
def test_a_click_sorts_by_number_with_failures_last_and_again_the_other_way(page: str, tmp_path: Path) -> None:
    script = """
      const table = [...document.querySelectorAll("#rows table.sortable")][0];
      const head = [...table.tHead.rows[0].cells].find((cell) => cell.textContent === "TFLOP/s");
      const speeds = () => [...table.tBodies[0].rows].map((row) => row.cells[head.cellIndex].firstChild.textContent);
      head.firstChild.click(); const up = speeds();
      head.firstChild.click(); const down = speeds();
      document.body.dataset.up = up.join(" "); document.body.dataset.down = down.join(" ");
    """
    text = dom(page, tmp_path, script=script)
    up, down = (re.search(f'data-{way}="([^"]*)"', text)[1].split() for way in ("up", "down"))  # type: ignore[index]

    numbers = [float(word) for word in up if word[0].isdigit()]
    assert numbers == sorted(numbers)
    assert [float(word) for word in down if word[0].isdigit()] == numbers[::-1]
    assert not any(word[0].isdigit() for word in [*up[19:], *down[19:]])


@needs_chromium
def test_without_javascript_everything_is_there_but_sorting(page: str, tmp_path: Path) -> None:
    """In a frame whose sandbox forbids scripts; the page around it reports what is in there."""
    script = """
      const inside = document.querySelector("iframe").contentDocument;
      const count = (what) => inside.querySelectorAll(what).length;
      document.body.dataset.found = [count("button"), count("svg"), count("#rows tbody tr"), inside.title].join("|");
    """
    outer = f"""<body><iframe sandbox="allow-same-origin" srcdoc="{html.escape(page)}"></iframe>
      <script>addEventListener("load", () => {{ {script} }});</script></body>"""

    text = chromium(outer, tmp_path, "--dump-dom").stdout

    assert 'data-found="0|8|30|example on NVIDIA H200"' in text


@needs_chromium
@pytest.mark.parametrize("width", [360, 1200])
def test_no_page_is_wider_than_its_window(page: str, tmp_path: Path, width: int) -> None:
    """Wide tables scroll inside their frame. A headless window is at least 500 wide, so the page is put in a frame."""
    script = "document.body.dataset.wide = document.documentElement.scrollWidth + ' ' + innerWidth;"
    inner = page.replace(
        "</body>", f"<script>{script} parent.postMessage(document.body.dataset.wide, '*');</script></body>"
    )
    (tmp_path / "inner.html").write_text(inner)
    outer = f"""<body><iframe src="inner.html" style="width:{width}px;height:900px;border:0"></iframe>
      <script>addEventListener("message", (event) => document.body.dataset.wide = event.data);</script></body>"""

    text = dom(outer, tmp_path, "--virtual-time-budget=2000", "--window-size=1300,1000")

    wide, inner_width = map(int, re.search(r'data-wide="(\d+) (\d+)"', text).groups())  # type: ignore[union-attr]
    assert wide <= inner_width == width


@needs_chromium
@pytest.mark.parametrize(("scheme", "paper"), [(1, (255, 255, 255)), (0, (13, 17, 23))])
def test_the_paper_follows_the_preferred_scheme(page: str, tmp_path: Path, scheme: int, paper: tuple[int, ...]) -> None:
    assert pixel(page, tmp_path, f"--blink-settings=preferredColorScheme={scheme}") == paper
