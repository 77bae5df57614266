"""A table as Markdown, LaTeX (with booktabs) and HTML; whatever the table holds is escaped."""

from collections.abc import Sequence

from markupsafe import Markup

from offpolicy.paper.tables import Shown, Table

MATHS = {
    "β̂": r"\hat\beta",
    "β": r"\beta",
    "τ": r"\tau",
    "γ": r"\gamma",
    "λ": r"\lambda",
    "φ": r"\phi",
    "π": r"\pi",
    "ρ": r"\rho",
    "η": r"\eta",
    "±": r"\pm",
    "−": "-",
    "√": r"\surd",
    "×": r"\times",
    "≥": r"\ge",
    "≤": r"\le",
    "·": r"\cdot",
}
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def markdown(table: Table) -> str:
    """One row of the header for groups and metrics together; the title is left to the page around it."""
    heads = [f"{name}: {metric}" if name else metric for name, metrics in table.groups for metric in metrics]
    lines = [_row(["line", *map(_plain, heads)]), "|---" * (len(heads) + 1) + "|"]
    lines += [_row([_plain(label), *(_markdown_cell(cell) for cell in cells)]) for label, cells in table.lines]
    lines += [_row([_plain(label), f"*{_plain(why)}*", *[""] * (len(heads) - 1)]) for label, why in table.absent]
    lines += [_row([f"*{_plain(label)}*", *(_markdown_cell(cell) for cell in cells)]) for label, cells in table.tests]
    return "\n".join([*lines, "", " ".join(table.notes), ""])


def latex(table: Table) -> str:
    """A table environment for booktabs."""
    count = sum(len(metrics) for _, metrics in table.groups)
    spans = [f"\\multicolumn{{{len(metrics)}}}{{c}}{{{tex(name)}}}" for name, metrics in table.groups]
    lines = [
        r"% \usepackage{booktabs}, \usepackage{graphicx}",
        r"\begin{table}",
        f"\\caption{{{tex(table.title)}. {tex(' '.join(table.notes))}}}",
        f"\\label{{table:{tex(table.name)}}}",
        r"\resizebox{\textwidth}{!}{%",
        f"\\begin{{tabular}}{{l{'c' * count}}}",
        r"\toprule",
        *([" & ".join(["", *spans]) + r" \\"] if any(name for name, _ in table.groups) else []),
        " & ".join(["", *(tex(metric) for _, metrics in table.groups for metric in metrics)]) + r" \\",
        r"\midrule",
        *_tex_rows(table.lines),
        *(f"{tex(label)} & \\multicolumn{{{count}}}{{l}}{{\\emph{{{tex(why)}}}}} \\\\" for label, why in table.absent),
        *([r"\midrule", *_tex_rows(table.tests)] if table.tests else []),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def html(table: Table) -> Markup:
    """A section with the table; the page around it brings the style."""
    count = sum(len(metrics) for _, metrics in table.groups)
    groups = _joined(Markup('<th colspan="{}">{}</th>').format(len(metrics), name) for name, metrics in table.groups)
    heads = _joined(Markup("<th>{}</th>").format(metric) for _, metrics in table.groups for metric in metrics)
    absent = _joined(
        Markup('<tr><th>{}</th><td colspan="{}"><em>{}</em></td></tr>').format(label, count, why)
        for label, why in table.absent
    )
    return Markup(
        '<section id="{name}"><h2>{title}</h2><div class="wide"><table class="numbers"><thead><tr><th></th>{groups}'
        "</tr><tr><th></th>{heads}</tr></thead><tbody>{lines}{absent}</tbody><tbody>{tests}</tbody></table></div>{notes}"
        "</section>"
    ).format(
        name=table.name,
        title=table.title,
        groups=groups,
        heads=heads,
        lines=_html_rows(table.lines),
        absent=absent,
        tests=_html_rows(table.tests),
        notes=_joined(Markup("<p>{}</p>").format(note) for note in table.notes),
    )


def tex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    out, rest = [], text
    while rest:
        sign = next((sign for sign in MATHS if rest.startswith(sign)), rest[0])
        out.append(f"${MATHS[sign]}$" if sign in MATHS else SPECIAL.get(sign, sign))
        rest = rest[len(sign) :]
    return "".join(out)


def _plain(text: str) -> str:
    """Text that Markdown prints as it is, in a cell."""
    for sign in "\\|*_<`[":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: Shown) -> str:
    wrap = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}[cell.mark]
    return wrap.format(_plain(cell.text)) + (f" \\[{_plain(cell.paper)}]" if cell.paper else "")


def _tex_rows(lines: Sequence[tuple[str, tuple[Shown, ...]]]) -> list[str]:
    wraps = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}
    return [
        " & ".join(
            [tex(label)]
            + [
                wraps[cell.mark] % tex(cell.text) + (f" {{\\small[{tex(cell.paper)}]}}" if cell.paper else "")
                for cell in cells
            ]
        )
        + r" \\"
        for label, cells in lines
    ]


def _html_rows(lines: Sequence[tuple[str, tuple[Shown, ...]]]) -> Markup:
    wraps = {"best": Markup("<b>{}</b>"), "second": Markup("<u>{}</u>"), "": Markup("{}")}
    return _joined(
        Markup("<tr><th>{}</th>{}</tr>").format(
            label,
            _joined(
                Markup("<td>{}{}</td>").format(
                    wraps[cell.mark].format(cell.text),
                    Markup(' <span class="paper">[{}]</span>').format(cell.paper) if cell.paper else "",
                )
                for cell in cells
            ),
        )
        for label, cells in lines
    )


def _joined(parts: object) -> Markup:
    return Markup("").join(parts)  # type: ignore[arg-type]
