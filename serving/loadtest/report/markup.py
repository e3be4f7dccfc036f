"""HTML from nested calls. Plain text is escaped, so that text of a report never becomes markup."""

from html import escape

_STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1c2126;--soft:#59636e;--line:#d8dee4;--bad:#b3261e;
--c0:#1b6ca8;--c1:#c65102;--c2:#2a7f3f;--c3:#8b3fa0;--c4:#b3352c;--c5:#0f7c80;--c6:#7a6000;--c7:#5a5a5a}
@media(prefers-color-scheme:dark){:root{--back:#14181c;--text:#e6e9ec;--soft:#9aa5b1;--line:#343c44;--bad:#ff8a80;
--c0:#6cb4ee;--c1:#ff9e4a;--c2:#6fce86;--c3:#d39be6;--c4:#ff7f74;--c5:#4fd0d4;--c6:#e0c040;--c7:#b8b8b8}}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--back);color:var(--text);
font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
pre{overflow-x:auto;padding:.6rem;border:1px solid var(--line);border-radius:.3rem;font-size:.85rem}
.wide{overflow-x:auto}.soft,small{color:var(--soft)}.bad{color:var(--bad);font-weight:600}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.3rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;vertical-align:top}
th:first-child,td:first-child{text-align:left}td small{display:block}td.text{white-space:normal;text-align:left}
.charts{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr))}
figure{margin:0}svg{display:block;width:100%;height:auto}svg text{fill:currentColor}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.3rem 0;padding:0;list-style:none;font-size:.85rem}
.legend li::before{content:"";display:inline-block;width:.8em;height:.8em;margin-right:.4em;background:var(--c)}
.bar{display:flex;min-width:8rem;height:1.1rem}.bar span{flex-basis:0;background:var(--c)}
.s0{--c:var(--c0)}.s1{--c:var(--c1)}.s2{--c:var(--c2)}.s3{--c:var(--c3)}
.s4{--c:var(--c4)}.s5{--c:var(--c5)}.s6{--c:var(--c6)}.s7{--c:var(--c7)}
details{margin:.3rem 0}summary{cursor:pointer}
"""


class Markup(str):
    """Text that is already markup."""

    __slots__ = ()


def tag(name: str, *content: str, **attributes: object) -> Markup:
    """Render an element.

    Args:
        name: name of the element.
        *content: consecutive content; everything except `Markup` is escaped.
        **attributes: attributes, `class_` for class.
    """
    given = "".join(f' {key.rstrip("_")}="{escape(str(value))}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{joined(*content)}</{name}>")


def joined(*content: str) -> Markup:
    """Concatenate pieces; everything except `Markup` is escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in content))


_HEAD = Markup(
    '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
)


def page(title: str, *content: str) -> str:
    head = tag("head", _HEAD, tag("title", title), Markup(f"<style>{_STYLE}</style>"))
    return f"<!doctype html>\n{tag('html', head, tag('body', *content), lang='en')}\n"
