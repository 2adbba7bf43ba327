"""Reading a page: its text, its ids, what it refers to; all that it opens it must close."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input"}
REFERRING = {"href", "src", "action", "data", "srcset", "poster", "background", "xlink:href"}


class HtmlPage(HTMLParser):
    """A parsed page: what it consists of, in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []  # The values of attributes that refer to something.
        self.attributes: list[tuple[str, str]] = []  # All others.
        self.text = ""  # Outside scripts and styles.
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.pre: list[str] = []
        self.policy = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"not closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)
        if tag == "pre":
            self.pre.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        names = dict(attrs)
        assert len(names) == len(attrs), f"{tag} has an attribute twice"
        if names.get("http-equiv") == "Content-Security-Policy":
            self.policy = names["content"]
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            elif name in REFERRING:
                self.links.append(value)
            else:
                self.attributes.append((name, value or ""))

    def handle_endtag(self, tag):
        assert self._open, f"{tag} was not open"
        assert self._open[-1] == tag, f"{tag} closed in {self._open}"
        self._open.pop()

    def handle_data(self, data):
        inside = self._open[-1] if self._open else ""
        if inside == "script":
            self.scripts.append(data)
        elif inside == "style":
            self.styles.append(data)
        else:
            self.text += data
            if "pre" in self._open:
                self.pre[-1] += data
