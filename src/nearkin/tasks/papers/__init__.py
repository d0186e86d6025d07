"""Data of the papers: sine curves, precipitation of weather stations, prevalence of malaria."""
