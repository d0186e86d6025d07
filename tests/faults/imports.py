"""Imports what commands import when they need it; for the server of `faults.processes`."""

import importlib

import nearkin as nk

for module in (
    "torch._dynamo",  # every optimiser asks for it
    "nearkin.multitask.joint",
    "nearkin.report.solution_page",
    "nearkin.solver.solving",
    "nearkin.zoo.interleaving",
    "faults.processes",
):
    importlib.import_module(module)
nk.task("digits?limit=20")
