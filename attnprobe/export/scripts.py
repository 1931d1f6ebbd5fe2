"""Which writing systems of a figure the bundled font does not have."""

import unicodedata
from collections.abc import Iterable

# First word of a character's Unicode name: what to call it, and a free font that has it.
_FONTS = {
    "CJK": ("Chinese, Japanese or Korean", "Noto Sans CJK"),
    "HIRAGANA": ("Japanese", "Noto Sans CJK"),
    "KATAKANA": ("Japanese", "Noto Sans CJK"),
    "HANGUL": ("Korean", "Noto Sans CJK"),
    "ARABIC": ("Arabic", "Noto Sans Arabic"),
    "HEBREW": ("Hebrew", "Noto Sans Hebrew"),
    "DEVANAGARI": ("Devanagari", "Noto Sans Devanagari"),
    "BENGALI": ("Bengali", "Noto Sans Bengali"),
    "TAMIL": ("Tamil", "Noto Sans Tamil"),
    "TELUGU": ("Telugu", "Noto Sans Telugu"),
    "THAI": ("Thai", "Noto Sans Thai"),
    "ARMENIAN": ("Armenian", "Noto Sans Armenian"),
    "GEORGIAN": ("Georgian", "Noto Sans Georgian"),
    "ETHIOPIC": ("Ethiopic", "Noto Sans Ethiopic"),
}


def font_note(texts: Iterable[str]) -> str:
    """A sentence for beside the export button when labels need a font of the system; else empty."""
    first = {unicodedata.name(char, " ").split(" ")[0] for char in set("".join(texts))}
    needed = sorted({_FONTS[word] for word in first & _FONTS.keys()})
    if not needed:
        return ""
    scripts = ", ".join(script for script, _ in needed)
    fonts = ", ".join(sorted({font for _, font in needed}))
    return f"PDF and PNG show labels in {scripts} only if a font such as {fonts} is installed."
