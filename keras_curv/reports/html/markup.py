"""HTML from nested calls, where text cannot become markup.

Names of files, models and data sets come from anyone. Whatever is not `Markup` is escaped, and
`Markup` comes from here and from constants only.
"""

from __future__ import annotations

import html

_VOID = {"img", "meta"}


class Markup(str):
    """Text that is HTML already."""


def escape(text) -> Markup:
    """The text as it is to be seen; characters that show nothing appear by their code.

    Those would end a line in a command, or turn the direction of what follows.

    Example:
        >>> escape('<a href="x">\\u202e')
        '&lt;a href=&quot;x&quot;&gt;\\\\u202e'
    """
    seen = (c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
    return Markup(html.escape("".join(seen)))


def element(name: str, /, *children, **attributes) -> Markup:
    """One element with its children.

    Args:
        name: of the tag.
        children: `Markup` stands as it is, None is left out, all else is escaped text.
        attributes: None is left out; `class_` is class, `aria_label` is aria-label.

    Example:
        >>> element("p", "1 < 2, ", element("em", "always"), class_="note")
        '<p class="note">1 &lt; 2, <em>always</em></p>'
    """
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    opening = f"<{name}{''.join(pairs)}>"
    return Markup(opening if name in _VOID else f"{opening}{join(*children)}</{name}>")


def join(*children) -> Markup:
    """Children side by side, without an element around them."""
    kept = (child for child in children if child is not None)
    return Markup("".join(c if isinstance(c, Markup) else escape(c) for c in kept))
