"""Reports: pictures of tasks and results as SVG, and self-contained HTML pages."""
