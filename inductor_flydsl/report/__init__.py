"""A page about a tuning store: one static HTML file without scripts, fonts or links outside."""

from .page import page

__all__ = ["page"]
