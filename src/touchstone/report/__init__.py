"""Evidence made readable: one self-contained HTML file, and a summary for the terminal."""

from touchstone.report.html import render_html, write_report
from touchstone.report.load import load_run
from touchstone.report.terminal import render_terminal

__all__ = ["load_run", "render_html", "render_terminal", "write_report"]
