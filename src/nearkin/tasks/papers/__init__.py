"""Data sets of the papers: sine curves, precipitation at weather stations, prevalence of malaria."""
