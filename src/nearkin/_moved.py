"""Old import paths and names: each works for one more version, with a warning that says the new one.

A module that was moved needs an entry in `MOVED`, a name that was changed one in `RENAMED`, and nothing else.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from operator import attrgetter
from types import ModuleType
from typing import Any

MOVED = {
    "nearkin.distance.frechet": "nearkin.distance.fisher_based.frechet",
    "nearkin.distance.kin": "nearkin.distance.short_finetune",
    "nearkin.distance.kin_score": "nearkin.distance.short_finetune",
    "nearkin.distance.measures": "nearkin.distance.registry",
    "nearkin.distance.readings": "nearkin.distance.fisher_based.readings",
    "nearkin.fisher.diagonal": "nearkin.fisher.diagonals",
    "nearkin.nets.fit": "nearkin.nets.training_loop",
    "nearkin.report.canvas": "nearkin.report.svg",
    "nearkin.report.words": "nearkin.report.labels",
    "nearkin.search.budget": "nearkin.core.budget",
    "nearkin.search.darts": "nearkin.search.spaces.darts",
    "nearkin.search.evaluate": "nearkin.search.genotype_evaluation",
    "nearkin.search.evolution": "nearkin.search.methods.evolution",
    "nearkin.search.fuse": "nearkin.search.methods.fuse.fuse",
    "nearkin.search.fuse_candidates": "nearkin.search.methods.fuse.candidates",
    "nearkin.search.fuse_round": "nearkin.search.methods.fuse.rounds",
    "nearkin.search.general": "nearkin.search.spaces.general",
    "nearkin.search.genotype": "nearkin.search.genotypes.genotype",
    "nearkin.search.kin_search": "nearkin.search.methods.warm_start",
    "nearkin.search.local_search": "nearkin.search.methods.local_search",
    "nearkin.search.named": "nearkin.search.networks.named",
    "nearkin.search.network": "nearkin.search.networks.build",
    "nearkin.search.operations": "nearkin.search.networks.operations",
    "nearkin.search.options": "nearkin.core.options",
    "nearkin.search.random_search": "nearkin.search.methods.random_search",
    "nearkin.search.restricted": "nearkin.search.spaces.restricted",
    "nearkin.search.sampling": "nearkin.search.methods.sampling",
    "nearkin.search.space": "nearkin.search.spaces.base",
    "nearkin.search.supernet.architecture_step": "nearkin.search.methods.darts.architecture_step",
    "nearkin.search.supernet.gradient_search": "nearkin.search.methods.darts.gradient_search",
    "nearkin.search.supernet.plain": "nearkin.search.supernet.reference",
    "nearkin.search.supernet.supernet": "nearkin.search.supernet.fused.supernet",
    "nearkin.solve": "nearkin.solver",
    "nearkin.solve.checks": "nearkin.tasks.checks.data_checks",
    "nearkin.solve.contenders": "nearkin.solver.contenders",
    "nearkin.solve.estimator": "nearkin.solver.estimator",
    "nearkin.solve.nearness": "nearkin.solver.nearness",
    "nearkin.solve.plan": "nearkin.solver.plan",
    "nearkin.solve.simple": "nearkin.solver.simple",
    "nearkin.solve.simple.models": "nearkin.solver.simple.models",
    "nearkin.solve.solution": "nearkin.solver.solution",
    "nearkin.solve.solving": "nearkin.solver.solving",
    "nearkin.tasks.malaria": "nearkin.tasks.papers.malaria",
    "nearkin.tasks.sinusoids": "nearkin.tasks.papers.sinusoids",
    "nearkin.tasks.ushcn": "nearkin.tasks.papers.precipitation",
    "nearkin.transfer.gaussian": "nearkin.transfer.gaussian_process",
    "nearkin.transfer.learn": "nearkin.transfer.marginal_likelihood",
    "nearkin.transfer.linearize": "nearkin.transfer.linearized",
    "nearkin.transfer.many": "nearkin.transfer.iterative",
    "nearkin.transfer.subset": "nearkin.nets.weight_subset",
    "nearkin.zoo.catalogue": "nearkin.store.catalogue",
    "nearkin.zoo.check": "nearkin.store.integrity",
    "nearkin.zoo.kinship": "nearkin.zoo.near",
    "nearkin.zoo.records": "nearkin.store.records",
    "nearkin.zoo.transferring": "nearkin.zoo.transfer",
}
"""New paths of modules by their old ones."""

RENAMED = {
    "nearkin.distance.short_finetune": {
        "Pace": "nearkin.distance.short_finetune:FinetuneSchedule",
        "kin_score": "nearkin.distance.short_finetune:short_finetune_loss",
    },
    "nearkin.core.events": {"kept": "nearkin.run.checkpoints:save_to_file"},
    "nearkin.nets.functional": {"evaluating": "nearkin.nets.functional:evaluation_mode"},
    "nearkin.nets.training_loop": {"fitting": "nearkin.nets.training_loop:fit.work"},
    "nearkin.search": {
        "Ask": "nearkin.search.registry:SearchProblem",
        "Best": "nearkin.search.searcher:ScoredGenotype",
        "Evaluated": "nearkin.search.genotype_evaluation:GenotypeEvaluation",
        "Outcome": "nearkin.search.searcher:SearchResult",
    },
    "nearkin.search.genotype_evaluation": {"Evaluated": "nearkin.search.genotype_evaluation:GenotypeEvaluation"},
    "nearkin.search.methods.sampling": {"Way": "nearkin.search.methods.sampling:Proposer"},
    "nearkin.search.methods.warm_start": {"kin_search": "nearkin.search.methods.warm_start:warm_start_search"},
    "nearkin.search.objective": {"Measured": "nearkin.search.objective:ObjectiveValue"},
    "nearkin.search.registry": {"Ask": "nearkin.search.registry:SearchProblem"},
    "nearkin.search.searcher": {
        "Best": "nearkin.search.searcher:ScoredGenotype",
        "Outcome": "nearkin.search.searcher:SearchResult",
        "searching": "nearkin.search.searcher:run_search.work",
    },
    "nearkin.search.tabular": {"Table": "nearkin.search.tabular:ArchitectureTable"},
    "nearkin.run": {
        "Entry": "nearkin.run.journal:JournalEntry",
        "journaled": "nearkin.run.journal:write_journal",
    },
    "nearkin.run.checkpoints": {
        "kept_in_file": "nearkin.run.checkpoints:save_to_file",
        "mark": "nearkin.run.checkpoints:facts_digest",
        "resumed": "nearkin.run.checkpoints:resume",
        "saved": "nearkin.run.checkpoints:save_checkpoints",
        "stored": "nearkin.run.checkpoints:read_stored",
    },
    "nearkin.run.journal": {
        "Entry": "nearkin.run.journal:JournalEntry",
        "journaled": "nearkin.run.journal:write_journal",
    },
    "nearkin.run.stages": {"Spent": "nearkin.run.stages:StageTime"},
    "nearkin.zoo.search": {"Ground": "nearkin.zoo.search:SearchDomain"},
    "nearkin.zoo.transfer": {"Transferring": "nearkin.zoo.transfer:TransferOptions"},
    "nearkin.store": {
        "Cleaning": "nearkin.store.integrity:CleanupResult",
        "Damage": "nearkin.store.integrity:DamagedBlob",
        "Placed": "nearkin.store.records:PendingArtifact",
    },
    "nearkin.store.integrity": {
        "Cleaning": "nearkin.store.integrity:CleanupResult",
        "Damage": "nearkin.store.integrity:DamagedBlob",
    },
    "nearkin.store.records": {"Placed": "nearkin.store.records:PendingArtifact"},
    "nearkin.transfer": {"Outcome": "nearkin.transfer.outcome:TransferScores"},
    "nearkin.transfer.hierarchy.meta_learn": {"Climbing": "nearkin.transfer.hierarchy.meta_learn:MetaLearning"},
    "nearkin.transfer.outcome": {
        "Outcome": "nearkin.transfer.outcome:TransferScores",
        "class_outcome": "nearkin.transfer.outcome:score_classes",
        "value_outcome": "nearkin.transfer.outcome:score_values",
    },
}
"""New names, as `module:name`, by module and old name."""


def renamed(module: str, name: str) -> Any:
    """Look up an old name for the `__getattr__` of a module, with a warning that says the new one."""
    new = RENAMED.get(module, {}).get(name)
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(f"{module}.{name} is now {new}", DeprecationWarning, stacklevel=3)
    home, _, path = new.partition(":")
    return attrgetter(path)(import_module(home))


class MovedModule(ModuleType):
    """Module under its old path; it forwards to the new one.

    It can be called, because importing `nearkin.solve.plan` replaces the function `nearkin.solve` by this module.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(MOVED[self.__name__]), name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function that has the name of the old module."""
        name = self.__name__.rpartition(".")[2]
        home = "nearkin.solver.solving" if self.__name__ == "nearkin.solve" else MOVED[self.__name__]
        return getattr(import_module(home), name)(*args, **options)


class OldNames:
    """Import hook for the modules of both tables; `importlib.abc` has base classes for it, which are slow to import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module that was moved, or one with names that were changed; None for all others."""
        if fullname in MOVED:
            return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]
        spec = PathFinder.find_spec(fullname, path) if fullname in RENAMED else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_add_old_names(module: ModuleType) -> None:
                run(module)
                vars(module).setdefault("__getattr__", lambda name: renamed(fullname, name))

            spec.loader.exec_module = run_and_add_old_names  # type: ignore[method-assign]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the module for an old path."""
        warnings.warn(f"{spec.name} is now {MOVED[spec.name]}", DeprecationWarning, stacklevel=2)
        return MovedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing: names are looked up in the new module."""


def install() -> None:
    """Add the import hook, once."""
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldNames())
