"""Pages made from Jinja2 templates, each of which extends `base.html.j2` beside this file."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

SUMMARY = Path(__file__).with_name("summary.html.j2")
"""A page of `lines`, then `plots`, then `tables`."""


def render_page(template: Path, **values: object) -> str:
    """The text of a page that needs nothing else: no script, no font, no picture from anywhere."""
    loader = FileSystemLoader([template.parent, Path(__file__).parent])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template.name).render(values)
