"""Pages as a browser reads them."""

import re
from html.parser import HTMLParser

#: Attributes that make a browser fetch something, unless they point into the page.
_FETCHING = {"src", "href", "xlink:href", "srcset", "data", "action", "poster", "background"}
_VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """A page as a list of elements; complains about elements that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def network_references(text: str) -> list[str]:
    """References that would make a browser load something from another host."""
    page = Page(text)
    found = [
        f"<{tag} {name}={value}>"
        for tag, attributes in page.elements
        for name, value in attributes.items()
        if name in _FETCHING and not value.startswith(("#", "data:"))
    ]
    found += [f"<{tag}>" for tag, _ in page.elements if tag in ("script", "iframe", "object")]
    found += re.findall(r"@import[^;]*|url\((?!['\"]?(?:#|data:))[^)]*\)|\w+://\S*", text)
    return found
