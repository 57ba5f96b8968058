"""Read tables of HTML with Python's parser."""

from __future__ import annotations

from html.parser import HTMLParser


class TableReader(HTMLParser):
    """The texts of a table's cells, row by row, of its caption and of what follows it, by Python's parser."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[list[str]] = []
        self.texts: dict[str, str] = {}
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag in ("table", "caption", "thead", "tbody", "tr", "th", "td", "p"), tag
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data
        else:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data
