"""Architecture search: genotypes, search spaces, networks, methods, supernets and weight plasticity."""

from typing import TYPE_CHECKING

from nearkin.core.lazy import exports

if TYPE_CHECKING:
    from nearkin.search.genotype_evaluation import GenotypeEvaluation as GenotypeEvaluation
    from nearkin.search.genotype_evaluation import evaluate_genotype as evaluate_genotype
    from nearkin.search.genotypes.genotype import Cells as Cells
    from nearkin.search.genotypes.genotype import Chain as Chain
    from nearkin.search.genotypes.genotype import Genotype as Genotype
    from nearkin.search.genotypes.genotype import Recurrent as Recurrent
    from nearkin.search.objective import Objective as Objective
    from nearkin.search.plasticity.anchor import WeightPlasticity as WeightPlasticity
    from nearkin.search.plasticity.plasticity_options import PlasticityOptions as PlasticityOptions
    from nearkin.search.plasticity.strength_schedule import StrengthSchedule as StrengthSchedule
    from nearkin.search.plasticity.telemetry import Forgetting as Forgetting
    from nearkin.search.plasticity.telemetry import measure_forgetting as measure_forgetting
    from nearkin.search.registry import METHODS as METHODS
    from nearkin.search.registry import Method as Method
    from nearkin.search.registry import SearchProblem as SearchProblem
    from nearkin.search.registry import method_named as method_named
    from nearkin.search.searcher import ScoredGenotype as ScoredGenotype
    from nearkin.search.searcher import Searcher as Searcher
    from nearkin.search.searcher import SearchResult as SearchResult
    from nearkin.search.searcher import run_search as run_search
    from nearkin.search.spaces.base import Space as Space
else:
    __getattr__, __dir__, __all__ = exports(__name__)
