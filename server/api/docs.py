"""Answers GET /docs: the OpenAPI document as one page that needs no script and no other host.

Swagger UI, which FastAPI would put here, is 1.5 MB of script from a CDN: without the internet it shows nothing, and
with it foreign code runs in a page of this origin.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse

# The page loads nothing.
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"

_STYLE = """body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}
code,pre{font-size:.9em;background:#f4f4f4}pre{padding:.6rem;overflow:auto}
table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0}
details{margin:.4rem 0;border-left:3px solid #ddd;padding-left:.8rem}summary{cursor:pointer}
.method{text-transform:uppercase;font-weight:600}
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}code,pre{background:#262626}a{color:#8bf}}"""


def docs_routes(app: FastAPI) -> APIRouter:
    """Make the route of one app; the page is made when it is first requested."""
    router = APIRouter(include_in_schema=False)
    made: list[str] = []

    @router.get("/docs")
    async def docs() -> HTMLResponse:
        if not made:
            made.append(docs_page(app.openapi()))
        return HTMLResponse(made[0], headers={"content-security-policy": PAGE_POLICY})

    return router


def docs_page(document: Mapping[str, Any]) -> str:
    """Write an OpenAPI 3 document as HTML."""
    info = document["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    schemas = document.get("components", {}).get("schemas", {})
    return "".join(
        (
            f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n',
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>\n',
            f'<h1>{title}</h1>\n<p>The same for programs: <a href="openapi.json">openapi.json</a></p>\n',
            *_operations(document["paths"]),
            "<h2>Schemas</h2>\n",
            *(_schema(name, schema) for name, schema in schemas.items()),
            "</html>\n",
        )
    )


def _operations(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, item in paths.items():
        for method, operation in item.items():
            if isinstance(operation, dict):
                yield from _operation(method, path, operation)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<h2><span class="method">{escape(method)}</span> <code>{escape(path)}</code></h2>\n'
    for text in (operation.get("summary"), operation.get("description")):
        yield _text(text) if text else ""
    if operation.get("security"):
        yield "<p>Needs an API key.</p>\n"
    parameters = [
        (p["name"], p["in"], _schema_name(p.get("schema", {})), p.get("description", ""))
        for p in operation.get("parameters", ())
    ]
    yield _table(("parameter", "in", "type", ""), parameters)
    bodies = operation.get("requestBody", {}).get("content", {})
    yield _table(("body", "type"), [(name, _schema_name(body.get("schema", {}))) for name, body in bodies.items()])
    yield "<h3>Answers</h3>\n"
    for status, answer in operation.get("responses", {}).items():
        yield _answer(status, answer)


def _answer(status: str, answer: Mapping[str, Any]) -> str:
    parts = [f"<details><summary><b>{escape(status)}</b> {_inline(answer.get('description', ''))}</summary>\n"]
    headers = answer.get("headers", {})
    parts.append(_table(("header", ""), [(name, header.get("description", "")) for name, header in headers.items()]))
    for kind, content in answer.get("content", {}).items():
        parts.append(f"<p><code>{escape(kind)}</code> {escape(_schema_name(content.get('schema', {})))}</p>\n")
        if "example" in content:
            parts.append(_json(content["example"]))
    return "".join((*parts, "</details>\n"))


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    head = f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>\n'
    return f"{head}{_text(schema.get('description', ''))}{_json(schema)}</details>\n"


def _schema_name(schema: Mapping[str, Any]) -> str:
    """Describe a schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " or ".join(_schema_name(alternative) for alternative in schema[word])
    kind = str(schema.get("format") or schema.get("type", ""))
    ends = [str(schema[end]) for end in ("minimum", "maximum") if end in schema]
    limits = f" from {ends[0]}" + (f" to {ends[1]}" if len(ends) > 1 else "") if "minimum" in schema else ""
    default = f", default {schema['default']}" if "default" in schema else ""
    return kind + limits + default


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = ["<tr>" + "".join(f"<th>{escape(column)}</th>" for column in columns) + "</tr>\n"]
    lines += ["<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>\n" for row in rows]
    return f"<table>\n{''.join(lines)}</table>\n"


def _text(markdown: str) -> str:
    """Turn the little Markdown that our descriptions have into HTML: paragraphs, tables, `code`."""
    blocks = []
    for block in markdown.strip().split("\n\n"):
        lines = block.splitlines()
        if lines and all(line.startswith("|") for line in lines):
            cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
            blocks.append(_table(cells[0], [row for row in cells[1:] if set("".join(row)) - set("-: ")]))
        elif lines:
            blocks.append(f"<p>{_inline(block)}</p>\n")
    return "".join(blocks)


def _inline(text: str) -> str:
    """Turn text with `code` in it into HTML."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))


def _json(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>\n"
